"""Opening a session for writing: lock, recover, number the epoch. Nothing is written to a log that is sound."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Final

from .environment import Environment, Settings
from .errors import OpenFailed
from .layout import LOCK_FILE, MAIN_FILE, TEMP_SUFFIX
from .lock import WriterLock
from .recovery import Recovered, Recovery, Sidecars, mend, recover_main, recover_sidecars
from .scope import SESSION
from .view import LogView
from .writer import Writer

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 8


def open_session(store: Environment, session: str, directory: str, settings: Settings) -> Writer:
    """See :meth:`Store.open_session`."""
    try:
        lock = _lock(store, directory)
        try:
            return _recover(store, session, directory, settings, lock)
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise OpenFailed(
            f"the session {session!r} cannot be opened for writing ({error})",
            "check the directory and its permissions; reading it needs neither lock nor write access",
        ) from error


def _lock(store: Environment, directory: str) -> WriterLock:
    for attempt in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            store.fs.make_dir(directory)
        try:
            return WriterLock.acquire(store.fs, os.path.join(directory, LOCK_FILE))
        except FileNotFoundError:  # deleted between the two calls
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _recover(store: Environment, session: str, directory: str, settings: Settings, lock: WriterLock) -> Writer:
    fs = store.fs
    report = Recovery()
    names = fs.list_dir(directory)
    main: Recovered | None = None
    sidecars = Sidecars()
    opened: list[Recovered] = []
    try:
        if MAIN_FILE in names:
            path = os.path.join(directory, MAIN_FILE)
            main = recover_main(fs, path, store=store.identity, session=session, report=report)
            opened.append(main)
        view = LogView.of_survey(main.handle, main.path, main.survey) if main is not None else None
        if view is not None and store.index is not None:
            view.index = store.index.log(os.path.basename(directory))
        sidecars = recover_sidecars(
            fs,
            directory,
            names,
            store=store.identity,
            session=session,
            main=view,
            main_last=main.survey.sequence if main is not None else -1,
            report=report,
        )
        opened += [car.log for car in (*sidecars.living, *sidecars.dead)]
        # From here on files are changed: what is refused was refused before.
        for name in names:
            if name.endswith(TEMP_SUFFIX):  # a file that was never given its name: nothing in it was acknowledged
                path = os.path.join(directory, name)
                fs.unlink(path)
                report.swept.append(path)
        mend(fs, directory, names, main, sidecars, report)
        epoch = max(lock.last_epoch, sidecars.epoch, main.survey.epoch if main is not None else 0) + 1
        sequence = max(sidecars.high, main.survey.high if main is not None else 0)
        lock.note(epoch)
    except BaseException:
        for recovered in opened:
            recovered.handle.close()
        raise
    writer = Writer(store, session, directory, lock, settings, epoch=epoch, sequence=sequence, recovery=report)
    if main is not None:
        writer.adopt(SESSION, writer.log_of(main.path, main.handle, main.survey, main.size, proved=main.proved))
    for car in sidecars.living:
        writer.adopt(
            car.scope, writer.log_of(car.log.path, car.log.handle, car.log.survey, car.log.size, proved=car.log.proved)
        )
    for car in sidecars.dead:
        car.log.handle.close()
        report.swept.append(car.log.path)
        writer.doom(car.scope, car.log.path, car.retired)
    writer.sweep()
    if report:
        _log.warning(
            "%s recovered: %d bytes torn, %d files set aside, %d unreadable, %d swept",
            directory,
            report.torn_bytes,
            len(report.set_aside),
            len(report.unreadable),
            len(report.swept),
        )
    return writer
