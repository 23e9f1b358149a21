"""Tracking changes of a plain value, to send them on as ops."""

from __future__ import annotations

from typing import Any

from .errors import InvalidOp
from .node import Node
from .overlap import SCAN
from .recording import Op, Recorder
from .textbuffer import TextBuffer
from .tracked import TrackedDict, TrackedList
from .values import CONTAINERS, copied


def track(root: dict[str, Any] | list[Any], *, max_overlap_scan: int = SCAN) -> Tracker:
    """A tracker of ``root``, which is adopted: it stays the live value, and is to be changed by ``state`` alone.

    What stands below ``root`` is copied, so that nobody else holds a part of it. ``max_overlap_scan`` is how many
    UTF-16 units of a text's end are searched when it is replaced by another, for what the other begins with.
    Raises :class:`InvalidOp` if ``root`` is no dict or list, ``InvalidElement`` or ``LimitExceeded`` if it is not
    JSON or nests deeper than 256.
    """
    return Tracker(root, max_overlap_scan)


class Tracker:
    """A plain value, views that change it, and what was changed since the last flush. Made by :func:`track`.

    Applying every batch that :meth:`flush` returns, in order, to a replica makes it equal to the value at the time
    of that flush (``discard`` aside). The first batch is a base. Ops are bounded: more than 4,094 pending changes
    become one ``r``. Not safe for use by several threads at once, reading views included.
    """

    __slots__ = ("_log",)

    def __init__(self, root: dict[str, Any] | list[Any], max_overlap_scan: int = SCAN) -> None:
        fresh = _checked(root)
        if type(root) is dict:
            root.clear()
            root.update(fresh)
        elif type(root) is list:
            root[:] = fresh
        else:  # a view: its own tracker has the container
            root = fresh
        self._log = Recorder(max_overlap_scan)
        self._log.root = _view(self._log, root)

    @property
    def state(self) -> Any:
        """The view of the root. Assigning a dict or list replaces the value by a copy; the next flush is a base."""
        return self._log.root

    @state.setter
    def state(self, root: Any) -> None:
        log = self._log
        if root is log.root:
            return  # tracker.state |= {...} ends like this
        data = _checked(root)
        log.collapse()
        log.root = _view(log, data)
        log.shape += 1

    @property
    def target(self) -> Any:
        """The live value, plain: to be read, or copied, not changed. Text under construction is made str."""
        for node in list(self._log.texted.values()):
            data = node.data
            for key, item in list(data.items()) if isinstance(data, dict) else enumerate(data):
                if type(item) is TextBuffer:
                    data[key] = item.text()
        self._log.texted.clear()
        return self._log.root.data

    @property
    def dirty(self) -> bool:
        """Whether the next flush may have something to tell; changes that cancel each other count."""
        return self._log.base or bool(self._log.records)

    def flush(self) -> list[Op]:
        """What changed since the last flush, as decoded ops that share nothing with the value; begins a new window."""
        return self._log.flush()

    def rebase(self) -> None:
        """Make the next flush a base: one ``r`` with the value it has then."""
        self._log.collapse()

    def discard(self) -> None:
        """Begin a new window without telling what changed: replicas fed so far differ until the next base. A base
        that is due stays due."""
        self._log.discard()


def _view(log: Recorder, data: Any) -> TrackedDict | TrackedList:
    kind = TrackedDict if isinstance(data, dict) else TrackedList
    return kind(log, None, None, data)


def _checked(root: Any) -> Any:
    """A copy of a value that can be a root."""
    if type(root) not in CONTAINERS and not isinstance(root, Node):
        raise InvalidOp(f"a {type(root).__name__} cannot be tracked", "track a dict or a list")
    return copied(root, 0)
