"""The log has all text of the agent, byte for byte, however its journal was split into batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.models import PART_LIMIT, MessagePart, TaskSession
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import (
    conversation,
    conversation_from_events,
    names,
    permission_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db

PIECES = ("a", " ", "\n", "é", "日本", "👩‍👩‍👧", "<b>", '"\\', "\u200d", "x" * 700, "\r\n", "\u2028")


def random_turns(seed: int) -> list[Line]:
    """Return a journal with every kind of agent activity in a random order."""
    draw, journal = random.Random(seed), Journal()
    lines: list[Line] = []
    for turn in range(3):
        message_id = f"p{turn}"
        lines += journal.turn_begins(message_id)
        for step in range(draw.randint(5, 25)):
            lines.append(_random_line(draw, journal, f"t{draw.randint(0, 3)}", f"q{turn}-{step}"))
        end = draw.choice(
            [JournalKind.TURN_COMPLETED, JournalKind.TURN_CANCELLED, JournalKind.TURN_FAILED, JournalKind.AGENT_EXITED]
        )
        lines.append(journal.line(end, message_id=message_id, code="c", message="m", exit_code=0, expected=True))
        lines.append(journal.line(JournalKind.TOOL_UPDATE, tool_call_id="t0", status="completed", raw_output=turn))
    return lines


def _random_line(draw: random.Random, journal: Journal, tool: str, permission: str) -> Line:
    piece, figure = "".join(draw.choices(PIECES, k=3)), draw.random()
    do: tuple[Callable[[], Line], ...] = (
        lambda: journal.tool(tool, title=piece, status=draw.choice(["pending", "completed", "failed"])),
        lambda: journal.line(JournalKind.TOOL_UPDATE, tool_call_id=tool, status="in_progress", content=[figure]),
        lambda: journal.line(JournalKind.PLAN, entries=[figure]),
        lambda: journal.requests_permission(permission),
        lambda: journal.line(JournalKind.MESSAGE_USER, text=piece),
        lambda: journal.line(JournalKind.USAGE, tokens=3),
        *[lambda: journal.line(JournalKind.MESSAGE_THOUGHT, text=piece)] * 2,
        *[lambda: journal.line(JournalKind.MESSAGE_AGENT, text=piece)] * 3,
    )
    return draw.choice(do)()


def cut(lines: Sequence[Line], draw: random.Random) -> Iterator[list[Line]]:
    """Split the lines into batches of random length."""
    at = 0
    while at < len(lines):
        length = draw.choice([1, 1, 2, 3, 8, 30])
        yield list(lines[at : at + length])
        at += length


def visible_state(session: TaskSession) -> dict[str, Any]:
    """Return what a user sees of a session, without ids."""
    return {
        "talk": conversation(session),
        "runs": runs(session),
        "permissions": set(permission_states(session).values()),
        "ends": [name for name in names(session) if name.startswith("session.run.")],
    }


@pytest.mark.parametrize("seed", range(8))
def test_journal_gives_the_same_conversation_in_any_batches(seed: int) -> None:
    lines = random_turns(seed)
    whole, pieces = running_session(), running_session()
    ingest(whole, lines)
    for batch in cut([_with_other_permission_id(line) for line in lines], random.Random(seed)):
        ingest(pieces, batch)
    assert visible_state(whole) == visible_state(pieces)
    for session in (whole, pieces):
        agent_text = "".join(text for role, text, _, _ in conversation(session) if role == "agent")
        assert agent_text == "".join(line["text"] for line in lines if line["kind"] == JournalKind.MESSAGE_AGENT)
        assert conversation_from_events(session) == [(role, text) for role, text, _, _ in conversation(session)]


def _with_other_permission_id(line: Line) -> Line:
    """Rename the line's permission id, which is globally unique, so that two sessions can have the same journal."""
    return {**line, "permission_id": f"other-{line['permission_id']}"} if "permission_id" in line else line


def test_chunks_of_one_batch_become_one_event() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), *journal.says("one ", "two ", "three")])
    before = names(session)
    assert before.count("session.message.added") == 2
    ingest(session, journal.says(" four", " five"))
    assert names(session) == [*before, "session.message.updated"]
    assert conversation(session)[-1][:2] == ("agent", "one two three four five")


def test_last_text_of_a_batch_is_marked_complete() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.says("before"), journal.tool("t1"), journal.tool("t2")])
    assert names(session) == ["session.message.added"] * 3
    assert conversation(session)[0] == ("agent", "before", {}, True)
    ingest(session, journal.says("after"))
    ingest(session, [*journal.says(" all"), journal.line(JournalKind.USAGE, tokens=3), journal.tool("t3")])
    assert names(session)[3:] == ["session.message.added", "session.message.updated", "session.message.added"]
    assert conversation(session)[3] == ("agent", "after all", {}, True)
    payload = session.events.get(seq=5).payload
    assert (payload["append"], payload["complete"]) == (" all", True)


def test_text_before_and_after_a_tool_call_keeps_its_order() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.says("before"), journal.tool("t1"), *journal.says("after")])
    assert [(role, text) for role, text, _, _ in conversation(session)] == [
        ("agent", "before"),
        ("tool", ""),
        ("agent", "after"),
    ]


def test_thought_ends_a_text_message_and_vice_versa() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.says("a"), journal.line(JournalKind.MESSAGE_THOUGHT, text="b"), *journal.says("c")])
    messages = [(role, text, complete) for role, text, _, complete in conversation(session)]
    assert messages == [("agent", "a", True), ("thought", "b", True), ("agent", "c", False)]


def test_late_result_updates_its_tool_call() -> None:
    session, journal = running_session(), Journal()
    lines = [*journal.turn_begins("p1"), journal.tool("t1", title="ls"), journal.completes("p1")]
    late = [
        journal.line(JournalKind.TOOL_UPDATE, tool_call_id="t1", status=status) for status in ("in_progress", "failed")
    ]
    ingest(session, [*lines, *late])
    tools = [payload for role, _, payload, _ in conversation(session) if role == "tool"]
    assert [(tool["title"], tool["status"]) for tool in tools] == [("ls", "failed")]


def test_two_late_updates_in_one_batch_are_both_kept() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.tool("t1", title="ls", status="completed")])
    changes = ({"raw_output": "a"}, {"locations": ["b"]})
    ingest(session, [journal.line(JournalKind.TOOL_UPDATE, tool_call_id="t1", **change) for change in changes])
    assert conversation(session)[-1][2] == {
        "tool_call_id": "t1",
        "title": "ls",
        "status": "completed",
        "raw_output": "a",
        "locations": ["b"],
    }


@pytest.mark.parametrize("length", [PART_LIMIT - 1, PART_LIMIT, PART_LIMIT + 1, 5 * PART_LIMIT + 3])
def test_long_text_is_stored_in_bounded_parts_and_read_as_one(length: int) -> None:
    session, journal = running_session(), Journal()
    text = ("0123456789é" * (length // 11 + 1))[:length]
    ingest(session, journal.says("start ", text))
    ingest(session, journal.says(text, " end"))
    parts = MessagePart.objects.filter(message__session=session).order_by("number")
    assert [part.number for part in parts] == list(range(len(parts)))
    assert all(len(part.text) <= PART_LIMIT for part in parts)
    assert all(len(part.text) == PART_LIMIT for part in list(parts)[:-1])
    assert conversation(session)[0][1] == f"start {text}{text} end"


def test_text_that_grows_in_small_steps_fills_its_parts() -> None:
    session, journal = running_session(), Journal()
    for number in range(12):
        ingest(session, journal.says(str(number % 10) * 10_000))
    lengths = MessagePart.objects.order_by("number").values_list("text", flat=True)
    assert [len(text) for text in lengths] == [PART_LIMIT, 120_000 - PART_LIMIT]
