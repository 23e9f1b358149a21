"""Never run, only type-checked: how the public interface types. A line that ends in ``# refused`` must be an error."""

from __future__ import annotations

from scopelog import (
    SESSION,
    Base,
    Changed,
    Deleted,
    Durability,
    Element,
    Ended,
    Entry,
    EphemeralScope,
    Json,
    List,
    ListBase,
    LogRecord,
    Position,
    Receipt,
    Records,
    Scope,
    Session,
    SessionFollower,
    SessionReader,
    SessionScope,
    Store,
    Value,
    ValueBase,
    Watch,
    Write,
    ephemeral,
    list_of,
    value,
)


def writes(session: Session) -> None:
    messages = list_of("chat", "messages")
    op = ephemeral("op-1")
    partial = op.list_of("chat", "partial")
    receipt: Receipt = session.commit([messages.append({"a": 1}), value("chat", "state").set(1), op.retire()])
    session.commit([partial.append("x", tag="t"), op.value("chat", "memo").delete()], durability=Durability.POWER)
    session.commit(write for write in (messages.trim(receipt.last), messages.delete()))
    session.commit([messages.append(1), partial.append(2)])  # refused
    session.commit([op.value("a", "b").set(1), op.retire()])  # refused
    session.commit([value("a", "b").set(1), op.value("a", "b").set(1)])  # refused
    session.commit([messages])  # refused
    number: int = session.append(partial, {"text": "x"})
    session.append(messages, number, "tag")
    session.append(value("a", "b"), 1)  # refused
    session.flush(Durability.POWER)


def reads_accept_any_scope(session: Session, reader: SessionReader) -> None:
    either: list[List[Scope]] = [list_of("a", "b"), ephemeral("op").list_of("a", "b")]
    for target in either:
        page: list[Element] = session.read(target, cursor=1, order="desc", limit=2, stop_at_tag="base")
        page += reader.read(target)
    values: list[Value[Scope]] = [value("a", "b"), ephemeral("op").value("a", "b")]
    for address in values:
        found: Json = session.get(address, default=None)
        reader.get(address, found)
    entries: list[Entry] = session.scan("a", "prefix", scope=ephemeral("op")) + reader.scan("a", scope=SESSION)
    session.get(list_of("a", "b"))  # refused
    session.read(value("a", "b"))  # refused
    session.read(list_of("a", "b"), order="newest")  # refused
    assert entries


def writes_are_invariant_in_their_scope(one: Write[SessionScope], other: Write[EphemeralScope]) -> None:
    wider: Write[Scope] = one  # refused
    narrower: Write[SessionScope] = other  # refused
    assert wider and narrower


def following(follower: SessionFollower) -> None:
    for event in follower:
        if isinstance(event, Base):
            reader: SessionReader = event.reader
            reader.close()
        elif isinstance(event, Records):
            records: list[LogRecord] = event.records
            assert records
        elif not isinstance(event, Deleted):
            retired: str = event.scope
            assert retired
        assert event.position  # refused
    saved: str = str(follower.position)
    with Store.open("path") as store:
        store.follow("id", saved, durable=True, scope=SESSION)
        store.follow("id", Position.parse(saved), scope=ephemeral("op"))
        store.follow("id", 3)  # refused


def stores() -> None:
    with Store.open("path", window_ms=50, durability=Durability.PROCESS) as store, store.session("id") as session:
        ids: list[str] = store.sessions()
        session.durable_seq(ephemeral("op"), Durability.PROCESS)
        Store.open("path", durability="POWER")  # refused
        assert ids


def watches(session: Session) -> None:
    of_list: Watch[ListBase | Changed] = session.watch(list_of("chat", "messages"), last=10, after="text")
    of_value: Watch[ValueBase | Changed] = session.watch(ephemeral("op-1").value("chat", "memo"), limit=5)
    for event in of_list:
        one: ListBase | Changed | Ended = event
        if isinstance(one, ListBase):
            first: Element = one.elements[0]
            first.seq.bit_length()
    found: ValueBase | Changed | Ended | None = of_value.next(timeout=1.5)
    if isinstance(found, ValueBase):
        entry: Entry | None = found.entry
        entry.key.upper()  # refused
    session.watch(value("chat", "state"), last=1)  # refused
    session.watch("chat")  # refused
