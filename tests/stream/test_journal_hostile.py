"""Damaged or forged journals: invalid lines are skipped and reported, all others are ingested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from executors_app.agentctl_client.streams import parse_frame
from executors_app.wire.journal_files import META_FILE, read_lines, segment_path
from executors_app.wire.line_format import UNREADABLE
from executors_app.wire.protocol import JournalKind
from sessions_app.models import PART_LIMIT, MessagePart, TaskSession
from tests.growth import assert_costs_at_most
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import conversation, execution_of, last_payload, names, running_session

pytestmark = pytest.mark.django_db

EPOCH = "epoch-1"
SKIPPED, GAP = "session.journal_skipped", "session.journal_gap"


def line(seq: Any, kind: Any = JournalKind.MESSAGE_AGENT, **body: Any) -> bytes:
    """Return a line as it is stored on disk."""
    return orjson.dumps({"seq": seq, "epoch": EPOCH, "ts": 1_750_000_000.5, "kind": kind, **body})


def raw(body: bytes) -> bytes:
    """Return the second line with a body that no encoder would write."""
    return b'{"seq":2,"epoch":"epoch-1","ts":1750000000,"kind":"message.agent",' + body + b"}"


# the second line: (the line, the reason why it is skipped, or None if it counts)
TABLE: dict[str, tuple[bytes, str | None]] = {
    "torn": (line(2, text="torn")[:30], "unreadable"),
    "invalid JSON": (b"\x00\x00\x00\x00", "unreadable"),
    "a bare number": (b"2", "unreadable"),
    "null": (b"null", "unreadable"),
    "a list": (b"[]", "unreadable"),
    "half a surrogate pair": (raw(rb'"text":"\ud800"'), "unreadable"),
    "deeply nested": (raw(b'"text":' + b"[" * 5_000 + b"]" * 5_000), "unreadable"),
    "too deep for Python": (raw(b'"text":"x","data":' + b"[" * 900 + b"]" * 900), "unreadable"),
    "an integer of 400 digits": (raw(b'"text":"x","n":' + b"9" * 400), "unreadable"),
    "no seq": (b'{"epoch":"epoch-1","ts":1,"kind":"log"}', "unreadable"),
    "a seq beyond 64 bits": (line(2**63, text="x"), "unreadable"),
    "a fractional seq": (line(2.5, text="x"), "unreadable"),
    "a text as time": (line(2, ts="now"), "unreadable"),
    "a seq that goes back": (line(1, text="again"), "out_of_order"),
    "a seq that jumps": (line(900, text="far"), "out_of_order"),
    "another epoch": (line(2, epoch="epoch-0", text="old"), "out_of_order"),
    "a list as text": (line(2, text=["x"]), "unwritable"),
    "a tool without a name": (line(2, JournalKind.TOOL_CALL, tool_call_id=7), "unwritable"),
    "a permission without an id": (line(2, JournalKind.PERMISSION_REQUESTED, options=[]), "unwritable"),
    "numbers as options": (
        line(2, JournalKind.PERMISSION_REQUESTED, permission_id="q", options=[1]),
        "unwritable",
    ),
    "a prompt without an id": (line(2, JournalKind.PROMPT_ACCEPTED, text="x"), "unwritable"),
    "an unknown kind": (line(2, "zebra.seen", stripes=40), None),
    "an integer of 20 digits": (raw(b'"text":"","n":99999999999999999999'), None),
    "U+0000": (raw(rb'"text":"a\u0000b"'), None),
    "5 MiB of text": (line(2, text="big " * (5 << 18)), None),
}


def parse_streamed(lines: list[bytes], tmp_path: Path) -> list[Line]:
    """Return the lines as a live agentctl sends them: bytes on its disk decoded to text."""
    return parse_frame(b"\n".join(lines).decode("utf-8", "replace"))


def parse_stored(lines: list[bytes], tmp_path: Path) -> list[Line]:
    """Return the lines that a dead agentctl left on disk."""
    (tmp_path / META_FILE).write_bytes(orjson.dumps({"epoch": EPOCH}))
    segment_path(tmp_path, 1).write_bytes(b"".join(one + b"\n" for one in lines))
    return list(read_lines(tmp_path))


def ingest_names(session: TaskSession, lines: list[Line]) -> list[str]:
    """Ingest the lines; return the names of the resulting events."""
    ingest(session, lines)
    return names(session)


@pytest.mark.parametrize("read_lines", [parse_streamed, parse_stored], ids=["stream", "disk"])
@pytest.mark.parametrize(("hostile", "reason"), TABLE.values(), ids=list(TABLE))
def test_hostile_line_does_not_affect_its_neighbours(
    read_lines: Callable[[list[bytes], Path], list[Line]], hostile: bytes, reason: str | None, tmp_path: Path
) -> None:
    session = running_session()
    names = ingest_names(session, read_lines([line(1, text="first "), hostile, line(3, text="third")], tmp_path))
    texts = [text for role, text, _, _ in conversation(session) if role == "agent"]
    assert "".join(texts).startswith("first ")
    assert "".join(texts).endswith("third")
    assert (execution_of(session).journal_epoch, execution_of(session).journal_seq) == (EPOCH, 3)
    if reason == "unreadable":  # the disk reader skips it silently; the resulting gap is reported
        assert last_payload(session, GAP)["reason"] == "lines_missing"
    if reason and not (reason == "unreadable" and read_lines is parse_stored):
        payload = last_payload(session, SKIPPED)
        assert (payload["reason"], payload["count"]) == (reason, 1)
        assert payload["seq"] == (None if reason == "unreadable" else orjson.loads(hostile)["seq"])
        assert names.count(SKIPPED) == 1
    if reason is None:
        assert {SKIPPED, GAP}.isdisjoint(names)


def test_lines_that_are_skipped_for_different_reasons_are_recorded_apart() -> None:
    session = running_session()
    torn, again = line(2, text="torn")[:30], line(1, text="again")
    ingest(session, parse_frame(b"\n".join([line(1, text="first"), torn, again, torn]).decode("utf-8", "replace")))
    skipped = session.events.filter(name=SKIPPED).order_by("seq").values_list("payload", flat=True)
    assert [(payload["reason"], payload["count"]) for payload in skipped] == [("unreadable", 2), ("out_of_order", 1)]


def test_unstorable_characters_are_replaced_and_long_text_is_split() -> None:
    session = running_session()
    hostile = [TABLE["U+0000"][0], line(3, text="\x01 big " * (5 << 17))]
    ingest(session, parse_frame(b"\n".join([line(1, text="<"), *hostile])))
    assert conversation(session)[0][1] == "<a\ufffdb" + "\x01 big " * (5 << 17)
    assert max(map(len, MessagePart.objects.values_list("text", flat=True))) == PART_LIMIT


def test_invalid_utf8_from_a_live_agentctl_is_shown_as_replacement_characters() -> None:
    session = running_session()
    ingest(session, parse_streamed([line(1, text="<"), raw(b'"text":"\xff\xfe"'), line(3, text=">")], Path()))
    assert conversation(session)[0][1] == "<\ufffd\ufffd>"


def test_many_unreadable_lines_are_reported_in_one_event() -> None:
    session = running_session()
    ingest(session, parse_frame(b"\n".join([line(1, text="a"), *[b"litter"] * 5_000, line(2, text="b")])))
    assert names(session) == [SKIPPED, "session.message.added"]
    assert last_payload(session, SKIPPED) == {"reason": "unreadable", "count": 5_000, "seq": None, "kind": "unreadable"}
    assert conversation(session)[0][1] == "ab"


def test_unwritable_lines_are_skipped_and_all_others_written_once() -> None:
    session = running_session()
    lines = [line(seq, text=f"{seq} ") for seq in range(1, 301)]
    lines[122], lines[250] = line(123, text=5), line(251, JournalKind.TOOL_UPDATE, tool_call_id=None)
    ingest(session, parse_frame(b"\n".join(lines)))
    assert "".join(text for _, text, _, _ in conversation(session)) == "".join(
        f"{seq} " for seq in range(1, 301) if seq not in (123, 251)
    )
    skipped = session.events.filter(name=SKIPPED).order_by("seq").values_list("payload", flat=True)
    assert [(one["reason"], one["seq"], one["kind"]) for one in skipped] == [
        ("unwritable", 123, "message.agent"),
        ("unwritable", 251, "tool.update"),
    ]


def test_unreadable_journal_does_not_move_the_cursor() -> None:
    session = running_session()
    ingest(session, parse_frame(line(1, text="a")))
    ingest(session, parse_frame(b"litter\nlitter"))
    assert execution_of(session).journal_seq == 1
    ingest(session, parse_frame(line(2, text="b")))
    assert conversation(session)[0][1] == "ab"


def test_overlong_values_are_truncated() -> None:
    session, journal = running_session(), Journal()
    endless = "word " * 200
    ingest(session, [*journal.turn_begins("p1"), journal.requests_permission("q1")])
    ingest(
        session,
        [
            journal.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id=endless),
            journal.tool(endless, title=endless),
            journal.line(JournalKind.TURN_COMPLETED, message_id="p1", stop_reason=endless),
        ],
    )
    assert SKIPPED not in names(session)
    assert session.runs.get().reason == endless[:64]
    assert session.permissions.get().option_id == endless[:128]


@pytest.mark.parametrize(
    "value",
    [b"[" + b"{}," * 500_000 + b"1]", b"[" + b"1," * 2_000_000 + b"1]", b"[" + b'"\\u0000",' * 200_000 + b"1]"],
    ids=["objects", "numbers", "zero bytes"],
)
def test_line_with_too_many_values_is_skipped_and_its_neighbours_are_written(value: bytes) -> None:
    session = running_session()
    header = b'{"seq":2,"epoch":"epoch-1","ts":1,"kind":"tool.call","tool_call_id":"a","raw_input":'
    frame = b"\n".join([line(1, text="<"), header + value + b"}", line(3, text=">")])
    assert_costs_at_most(0.5, lambda: parse_frame(frame))
    parsed = parse_frame(frame)
    assert [each["kind"] for each in parsed] == ["message.agent", UNREADABLE, "message.agent"]
    ingest(session, parsed)
    assert "".join(text for role, text, *_ in conversation(session) if role == "agent") == "<>"
