"""Which project a read is about, and how the server detects the project of a directory."""

from __future__ import annotations

import configparser
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .state import Call, Refused
from .text import is_path_like, normalise_name

if TYPE_CHECKING:
    from .model import Model


def scope(model: Model, call: Call) -> str | None:
    """The project of a scoped read, ``None`` for all of them.

    With neither parameter the server answers for its own directory. The bridge must never ask that, so the request is
    also noted in ``model.unscoped``, which fails the end-of-test invariants.
    """
    everything = call.values("all_projects")
    asked = call.values("project")
    if everything not in ([], ["true"], ["false"]):
        raise Refused(400, "all_projects must be true or false", code="invalid_project")
    if asked and everything == ["true"]:
        raise Refused(400, "project and all_projects exclude each other", code="invalid_project")
    if everything == ["true"]:
        return None
    if not asked:
        model.unscoped.append(f"{call.method} {call.path}")
        return _own_project(model, call)
    if len(asked) > 1 or not asked[0].strip() or is_path_like(asked[0]):
        raise Refused(400, "invalid project", code="invalid_project")
    project = normalise_name(asked[0])
    known = model.known_projects()
    if project not in known:
        raise Refused(404, f"unknown project {project}", code="unknown_project", available_projects=known)
    return project


def _own_project(model: Model, call: Call) -> str:
    envelope = resolve(model, call.value("cwd").strip() or model.directory)
    if not envelope["project"]:
        raise Refused(
            409,
            "project is ambiguous",
            code="ambiguous_project",
            available_projects=envelope["available_projects"],
            project_source=envelope["project_source"],
            project_path=envelope["project_path"],
        )
    return normalise_name(str(envelope["project"]))


def integer(call: Call, name: str, default: int) -> int:
    """A whole number of the query, or the default when it is absent, malformed or negative."""
    text = call.value(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def resolve(model: Model, cwd: str) -> dict[str, Any]:
    """The envelope of ``GET /project/current``: the test's table first, then what lies on the disk."""
    if cwd in model.resolutions:
        return model.resolutions[cwd]
    if model.process_project:
        return envelope(cwd, model.process_project, "process_override", cwd)
    return detect(cwd)


def envelope(cwd: str, project: str, source: str, path: str, **extra: Any) -> dict[str, Any]:
    return {
        "project": project,
        "project_source": source,
        "project_path": path,
        "cwd": cwd,
        "available_projects": None,
        **extra,
    }


def ambiguous(cwd: str, candidates: list[str]) -> dict[str, Any]:
    hint = "several projects fit this directory: choose one in .engram/config.json"
    return envelope(cwd, "", "ambiguous", cwd, available_projects=candidates, error_hint=hint)


def detect(cwd: str) -> dict[str, Any]:
    """Config at the git root (or at cwd outside git), git remote, git root, the one child repository, the base name."""
    here = Path(cwd)
    root = next((path for path in (here, *here.parents) if (path / ".git").exists()), None)
    configured = _configured(root or here)
    if configured:
        return envelope(cwd, normalise_name(configured), "config", str(root or here))
    if root is not None:
        remote = _remote_name(root)
        return envelope(cwd, normalise_name(remote or root.name), "git_remote" if remote else "git_root", str(root))
    children = sorted(path for path in here.glob("*/") if (path / ".git").exists()) if here.is_dir() else []
    if len(children) == 1:
        child = children[0]
        return envelope(cwd, normalise_name(_remote_name(child) or child.name), "git_child", str(child))
    if children:
        return ambiguous(cwd, [normalise_name(path.name) for path in children])
    return envelope(cwd, normalise_name(here.name), "dir_basename", cwd)


def _configured(directory: Path) -> str:
    """``project_name`` of the config file; a broken file is a hard error, never a guess."""
    path = directory / ".engram" / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        name = json.loads(text)["project_name"]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(500, "the project config is not readable", code="project_resolution_failed") from error
    if not isinstance(name, str) or not name.strip():
        raise Refused(500, "the project config names no project", code="project_resolution_failed")
    return name


def _remote_name(root: Path) -> str:
    """The last part of the remote ``origin``, read from the git config without running git."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    try:
        parser.read_string((root / ".git" / "config").read_text(encoding="utf-8"))
    except (OSError, configparser.Error):
        return ""
    url = parser.get('remote "origin"', "url", fallback="")
    return url.rstrip("/").replace(":", "/").rsplit("/", 1)[-1].removesuffix(".git")
