"""Documents cannot drift: snippets run, public names and errors are documented, sizes are quoted as they are."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

import scopelog
from scopelog import Durability, ScopelogError, Store, delta, watching
from scopelog.clients import memory, messages
from scopelog.clients.memory.outbox import Places
from scopelog.clients.memory.tools import Tool
from scopelog_engine import feeds, layout

from .engram import EngramServer

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "scopes" / "README.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MESSAGES = (ROOT / "scopes" / "MESSAGES.md").read_text(encoding="utf-8")
MEMORY = (ROOT / "scopes" / "MEMORY.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "engine" / "FORMAT.md").read_text(encoding="utf-8")


def _snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_snippets_of_the_guide_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = _snippets(GUIDE)
    assert len(snippets) >= 6
    for snippet in snippets:
        exec(compile(snippet, "scopes/README.md", "exec"), names)


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = _snippets(README)
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out == "{'role': 'assistant', 'text': 'Hello!'}\n"
    with Store.open("agent.store") as store, store.reader("chat-1") as reader:
        assert reader.scopes() == []


def test_the_snippets_of_the_messages_guide_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "messages_guide"}
    snippets = _snippets(MESSAGES)
    assert len(snippets) >= 8
    for snippet in snippets:
        exec(compile(snippet, "scopes/MESSAGES.md", "exec"), names)
    cast("Store", names["store"]).close()


def test_the_snippets_of_the_memory_guide_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "memory_guide"}
    snippets = _snippets(MEMORY)
    assert len(snippets) >= 6
    with EngramServer("3") as server:
        monkeypatch.setenv("ENGRAM_URL", server.url)
        server.model.resolve_to(str(tmp_path), "demo")
        for snippet in snippets:
            exec(compile(snippet, "scopes/MEMORY.md", "exec"), names)
        server.check_invariants(
            agents={"agent-1": [], "agent-2": []},
            projects={"agent-1": "demo", "agent-2": "demo"},
            secrets=["hunter2", "never closed"],
        )


@pytest.mark.parametrize("tool", memory.TOOLS.values(), ids=lambda tool: str(tool.name))
def test_every_memory_tool_stands_in_the_row_of_its_kind(tool: Tool) -> None:
    (row,) = [line for line in MEMORY.splitlines() if line.startswith(f"| `{tool.kind}` |")]
    assert f"`{tool.name}`" in row


def test_every_setting_and_default_of_the_memory_client_is_in_its_guide() -> None:
    spelled: dict[object, str] = {None: "none", True: "true", "engram": "`engram`"}
    for field in dataclasses.fields(memory.MemoryConfig):
        default = spelled.get(field.default, str(field.default))
        assert re.search(rf"^\| `{field.name}` \| {default} \|", MEMORY, re.MULTILINE), field.name


def test_every_namespace_of_the_outbox_is_in_the_memory_guide() -> None:
    places = Places("a")
    for address in (places.queue, places.flight, places.done, places.key, places.aside("e")):
        assert f"\n| `{address.namespace}` |" in MEMORY


@pytest.mark.parametrize(
    ("module", "guide"),
    [(delta, MESSAGES), (messages, MESSAGES), (memory, MEMORY)],
    ids=["delta", "messages", "memory"],
)
def test_every_public_name_of_the_clients_is_in_their_guide(module: ModuleType, guide: str) -> None:
    shown = " ".join([*_snippets(guide), *re.findall(r"`[^`\n]+`", guide)])
    assert [name for name in module.__all__ if not re.search(rf"\b{name}\b", shown)] == []
    for name in module.__all__:
        public = getattr(module, name)
        if inspect.isclass(public) or inspect.isfunction(public):
            assert public.__doc__, name


@pytest.mark.parametrize("name", sorted(scopelog.__all__))
def test_every_public_name_has_a_docstring(name: str) -> None:
    public = getattr(scopelog, name)
    if inspect.isclass(public) or inspect.isfunction(public):
        assert public.__doc__, name


@pytest.mark.parametrize("name", [n for n in scopelog.__all__ if inspect.isclass(getattr(scopelog, n))])
def test_every_error_is_in_the_guide(name: str) -> None:
    if issubclass(getattr(scopelog, name), ScopelogError):
        assert f"`{name}`" in GUIDE


def test_every_error_of_the_engine_is_public() -> None:
    from scopelog_engine import errors

    known = {n for n, e in vars(errors).items() if inspect.isclass(e) and issubclass(e, ScopelogError)}
    assert known <= set(scopelog.__all__)


@pytest.mark.parametrize(
    "cls",
    [scopelog.Session, scopelog.SessionReader, scopelog.SessionFollower, scopelog.Store, scopelog.Watch],
)
def test_every_method_is_in_the_guide(cls: type) -> None:
    for name in vars(cls):
        if not name.startswith("_"):
            assert re.search(rf"\b{name}\b", GUIDE), f"{cls.__name__}.{name}"


@pytest.mark.parametrize(
    "cls", [scopelog.Finding, scopelog.Recovery, scopelog.TornTail, scopelog.SetAside, scopelog.LogRecord]
)
def test_every_field_of_a_result_is_in_the_guide(cls: type) -> None:
    fields = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields  # type: ignore[attr-defined]
    assert fields
    for name in fields:
        assert f"`{name}`" in GUIDE, f"{cls.__name__}.{name}"


@pytest.mark.parametrize(
    "cls",
    [
        scopelog.Element,
        scopelog.Entry,
        scopelog.Base,
        scopelog.Records,
        scopelog.Retired,
        scopelog.ListBase,
        scopelog.ValueBase,
        scopelog.Changed,
        scopelog.Change,
        scopelog.Ended,
    ],
)
def test_every_result_of_a_read_is_spelled_out(cls: type) -> None:
    assert f"{cls.__name__}({', '.join(cls._fields)})" in GUIDE  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", [README, GUIDE, FORMAT, MEMORY], ids=["README", "guide", "FORMAT", "memory"])
def test_no_paragraph_stands_twice(text: str) -> None:
    paragraphs = [part for part in text.split("\n\n") if len(part) > 80]
    assert sorted(set(paragraphs)) == sorted(paragraphs)


@pytest.mark.parametrize("text", [README, GUIDE, FORMAT, MEMORY], ids=["README", "guide", "FORMAT", "memory"])
def test_sections_and_files_that_are_referred_to_exist(text: str) -> None:
    sections = set(re.findall(r"^## (\d+)\. ", FORMAT, re.MULTILINE))
    if text is FORMAT:
        assert set(re.findall(r"section (\d+)", text)) <= sections
    scopes = ROOT / "scopes"
    folder = {id(README): ROOT, id(GUIDE): scopes, id(MEMORY): scopes, id(FORMAT): ROOT / "engine"}[id(text)]
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (folder / target).exists(), target
    headings = {
        re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert anchor in headings, anchor


def test_every_reason_of_an_end_and_the_limits_of_watches_are_in_the_guide() -> None:
    for reason in scopelog.EndReason:
        assert f"`{reason.name}`" in GUIDE
    assert f"({feeds.LIMIT} batches, up to {watching.MAX_LIMIT:,}) and {feeds.LIMIT_BYTES >> 20} MiB" in GUIDE


def test_the_digest_is_spelled_as_it_is_computed() -> None:
    (example,) = re.findall(r"`([0-9a-f]{32}\|[^`]+)`", FORMAT)
    digest = hashlib.sha256(example.replace("|", "\0").encode()).digest()[:2]
    assert f"(digest `{digest.hex(' ')}`)" in FORMAT


def test_what_the_readme_quotes_of_the_assumptions_carries_their_numbers() -> None:
    success = re.search(r"`fdatasync` that returns success [^(]*\((\d)\)", README)
    failure = re.search(r"failed one may have dropped it for good \((\d)\)", README.replace("\n", " "))
    assert success and failure
    assert f"{success[1]}. `fdatasync` that returns success" in FORMAT
    assert f"{failure[1]}. A failed `fdatasync` may have dropped" in FORMAT


@pytest.mark.parametrize("cls", [scopelog.Session, scopelog.SessionReader, scopelog.SessionFollower, scopelog.Store])
def test_every_method_has_a_docstring(cls: type) -> None:
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and name not in ("close",):
            assert member.__doc__ or cls is scopelog.SessionReader, f"{cls.__name__}.{name}"


def test_every_statistic_is_in_the_guide(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s") as store, store.session("a") as session:
        session.commit([scopelog.value("a", "b").set(1)])
        with store.reader("a") as reader:
            for name in (*session.stats(), *reader.stats()):
                assert f"`{name}`" in GUIDE, name


def test_limits_and_sizes_are_quoted_as_they_are() -> None:
    assert f"Limits of 1.0: nesting {layout.MAX_DEPTH}, {layout.MAX_ELEMENT_BYTES >> 20} MiB an element" in FORMAT
    assert f"{layout.MAX_COMMIT_BYTES >> 20} MiB a commit" in FORMAT
    assert f"{layout.STRETCH_BYTES >> 10} KiB long, the next append begins with an index frame" in FORMAT
    assert f"grows by {layout.PREALLOCATE_BYTES >> 10} KiB at a time" in FORMAT
    assert f"an index frame if the open stretch is {layout.CLOSE_INDEX_BYTES >> 10} KiB or longer" in FORMAT
    assert f"an element above {layout.OWN_FRAME_BYTES >> 10} KiB" in FORMAT
    assert f"**{layout.FORMAT_MAJOR}" not in FORMAT
    assert f"Format {layout.FORMAT_MAJOR}.{layout.FORMAT_MINOR}." in FORMAT


def test_each_durability_level_has_a_row_in_both_tables() -> None:
    for level in Durability:
        assert f"`{level.name}`" in README
        assert f"`Durability.{level.name}`" in GUIDE


def test_the_version_is_the_distributions() -> None:
    assert f'version = "{scopelog.__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"## {scopelog.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
