"""Random ACP messages and journal lines: none affects its neighbours or is written twice."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors_app.agentctl.drivers.acp_requests import parse_permission_request
from executors_app.agentctl.drivers.acp_updates import ReplayCollector, update_to_journal_line
from executors_app.agentctl.drivers.json_rpc import JsonRpcConnection
from executors_app.agentctl_client.streams import parse_frame
from executors_app.wire.protocol import JournalKind
from tests.fuzz.values import BOUNDED, FEW, mostly, record, text, value
from tests.supervisor.journals import ingest
from tests.supervisor.rows import conversation, execution_of, running_session
from tests.waiting import eventually_async

EPOCH = "epoch-1"
FIRST, LAST = "the first words ", "the last words"
UPDATE = record(
    sessionUpdate=st.sampled_from(
        ["agent_message_chunk", "user_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"]
    ),
    content=record(type=text("text", "image"), text=text(), resource=record(text=text())),
    messageId=text(),
    toolCallId=text("t"),
    title=text(),
    status=text("completed", "failed"),
    entries=st.lists(value(), max_size=3),
    rawInput=value(),
    locations=value("path"),
)
BODY = record(
    text=text(),
    message_id=text("p1"),
    tool_call_id=text("t"),
    permission_id=text("q"),
    options=st.lists(record(option_id=text("yes"), name=text()), max_size=3),
    tool_call=value("title"),
    entries=value(),
    usage=value(),
    exit_code=value(),
    stop_reason=text("end_turn"),
    fingerprint=text(),
    code=text("agent_error"),
    content=value(),
    agent_message_id=text(),
)


def encoded(line: dict[str, Any]) -> bytes:
    """Return the line as bytes on disk; values that cannot be JSON become an invalid line."""
    try:
        return orjson.dumps(line)
    except TypeError:
        return repr(line).encode("utf-8", "backslashreplace").replace(b"\n", b" ")


def numbered(bodies: list[dict[str, Any]]) -> list[bytes]:
    """Return encoded lines, numbered without gaps, between two lines of text."""
    line = {"kind": JournalKind.MESSAGE_AGENT, "text": FIRST}
    all_of_them = [line, *bodies, {"kind": JournalKind.MESSAGE_AGENT, "text": LAST}]
    return [
        encoded({**body, "seq": seq, "epoch": EPOCH, "ts": 1_750_000_000.5}) for seq, body in enumerate(all_of_them, 1)
    ]


def check_written_once(lines: list[bytes]) -> None:
    session = running_session()
    for _ in range(2):
        ingest(session, parse_frame(b"\n".join(lines)))
        text = "".join(words for _, words, _, _ in conversation(session))
        assert text.count(FIRST) == 1
        assert text.count(LAST) == 1
        seqs = list(session.events.order_by("seq").values_list("seq", flat=True))
        assert seqs == list(range(1, len(seqs) + 1))
        assert execution_of(session).journal_seq == len(lines)


@pytest.mark.django_db
@FEW
@given(bodies=st.lists(st.tuples(mostly(st.sampled_from(list(JournalKind)), text()), BODY), max_size=6))
def test_any_journal_line_leaves_its_neighbours_intact(bodies: list[Any]) -> None:
    check_written_once(numbered([{**body, "kind": kind} for kind, body in bodies]))


@pytest.mark.django_db
@FEW
@given(updates=st.lists(UPDATE, max_size=6))
def test_any_update_of_an_agent_can_be_written(updates: list[dict[str, Any]]) -> None:
    bodies = []
    for update in updates:
        try:
            kind, body = update_to_journal_line(update)
        except TypeError:  # the pipe's reader drops such a value with its line
            continue
        bodies.append({**body, "kind": str(kind)})
    check_written_once(numbered(bodies))


@BOUNDED
@given(updates=st.lists(UPDATE, max_size=8))
def test_any_replay_is_bounded(updates: list[dict[str, Any]]) -> None:
    replay = ReplayCollector()
    for update in updates:
        replay.add(update)
    assert replay.messages <= len(updates)
    assert all(len(one.encode()) <= 4096 for one in replay.user_texts)


@BOUNDED
@given(params=record(options=st.lists(record(optionId=text(), name=value()), max_size=3), toolCall=value("title")))
def test_any_permission_request_is_valid_or_refused(params: Any) -> None:
    try:
        parsed = parse_permission_request(params)
    except ValueError:
        return
    assert parsed["options"]
    assert all(isinstance(one["option_id"], str) for one in parsed["options"])


class FakePipes:
    """The pipes of an agent that writes ``data`` and exits."""

    def __init__(self, data: list[bytes]):
        self.data, self.received = data, list[bytes]()

    async def read(self) -> bytes:
        return self.data.pop(0) if self.data else b""

    async def write(self, data: bytes) -> None:
        self.received.append(data)


MESSAGE = record(
    jsonrpc=st.just("2.0"),
    id=value(),
    method=text("session/update", "session/request_permission", "fs/read_text_file"),
    params=value("update", "sessionUpdate"),
    result=value(),
    error=record(code=value(), message=value()),
)
LINE = st.binary(max_size=60) | MESSAGE.map(encoded)


@BOUNDED
@given(lines=st.lists(LINE, max_size=8), cut=st.integers(1, 50))
async def test_any_line_leaves_the_conversation_working(lines: list[bytes], cut: int) -> None:
    whole = b"\n".join([*lines, b'{"jsonrpc": "2.0", "method": "at/last", "params": {}}', b""])
    client = FakePipes([whole[at : at + cut] for at in range(0, len(whole), cut)])
    reports: list[str] = []

    async def answer(method: str, params: Any) -> Any:
        return {"of": method}

    async def wait_for_room() -> None:
        await asyncio.sleep(0)

    process: Any = SimpleNamespace(stdin=client, stdout=client)
    wire = JsonRpcConnection(
        process,
        on_notification=lambda method, params: reports.append(method),
        on_request=answer,
        room=wait_for_room,
        record=lambda *args, **fields: None,
    )
    wire.start_reading()
    await eventually_async(wire.closed.is_set, describe="all input is handled")
    await wire.close()
    assert reports[-1] == "at/last"
    assert all(isinstance(orjson.loads(one), dict) for one in client.received)
