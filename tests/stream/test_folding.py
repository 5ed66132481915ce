"""Journal lines are folded before their session is locked: text is joined, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.wire.line_format import UNREADABLE
from executors_app.wire.protocol import JournalKind
from sessions_app.models import random_ids
from sessions_app.stream.ingest.folding import PreparedLines, fold_texts
from tests.supervisor.journals import Journal, Line, ingest
from tests.supervisor.rows import conversation, names, running_session

AWKWARD = ("tab\t", "line\n", "back\\slash ", "\\N", "\\.", "é日本👩‍👩‍👧 ", '"quoted" ', "")


def thought(journal: Journal, text: Any) -> Line:
    return journal.line(JournalKind.MESSAGE_THOUGHT, text=text)


def test_pieces_of_one_text_become_one_line_with_the_time_of_the_first() -> None:
    journal = Journal()
    lines = [*journal.says("one ", "two"), thought(journal, "hm"), *journal.says("three")]
    assert [(line["text"], line["ts"]) for line in fold_texts(lines)] == [
        ("one two", lines[0]["ts"]),
        ("hm", lines[2]["ts"]),
        ("three", lines[3]["ts"]),
    ]


@pytest.mark.parametrize("between", [{"text": 5}, {"text": "x", "message_id": 5}, {}], ids=str)
def test_malformed_text_is_left_alone(between: dict[str, Any]) -> None:
    journal = Journal()
    lines = [*journal.says("one "), journal.line(JournalKind.MESSAGE_AGENT, **between), *journal.says("two")]
    assert fold_texts(lines) == lines


def test_only_gapless_lines_continue_at_a_cursor() -> None:
    lines = Journal().says("1", "2", "3")
    prepared = PreparedLines.of(lines[1:])
    assert prepared.continues("epoch-1", 1)
    assert PreparedLines.of(lines).continues("", 0)
    assert not any(prepared.continues(*cursor) for cursor in (("epoch-1", 0), ("epoch-1", 2), ("epoch-0", 1)))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"kind": UNREADABLE, "text": "?"}],
        [*Journal().says("1"), {"kind": UNREADABLE, "text": "?"}],
        Journal().says("1", "2", "3")[::2],
        [*Journal().says("1"), *Journal("epoch-2").says("1", "2")[1:]],
    ],
    ids=["none", "unreadable", "unreadable behind", "a gap", "two epochs"],
)
def test_other_lines_are_never_gapless(lines: list[Line]) -> None:
    assert not PreparedLines.of(lines).continues("epoch-1", 0)


def test_random_ids_are_distinct_and_of_version_4() -> None:
    ids = random_ids()
    some = {next(ids) for _ in range(200)}
    assert len(some) == 200
    assert {one.version for one in some} == {4}


@pytest.mark.django_db
def test_large_batch_is_stored_exactly_and_in_order() -> None:
    session, journal, lines, expected = running_session(), Journal(), list[Line](), list[tuple[str, str]]()
    for number in range(100):
        text = f"{number} {AWKWARD[number % len(AWKWARD)]}"
        lines += [*journal.says(*text), journal.tool(f"call {number}", title=text, status="completed")]
        expected += [("agent", text), ("tool", "")]
    ingest(session, lines)
    assert [(role, text) for role, text, *_ in conversation(session)] == expected
    payloads = session.messages.filter(role="tool").order_by("seq").values_list("payload", flat=True)
    assert [payload["title"] for payload in payloads] == [text for role, text in expected if role == "agent"]
    assert list(session.events.order_by("seq").values_list("seq", flat=True)) == list(range(1, 201))


@pytest.mark.django_db
def test_batch_that_begins_before_the_cursor_adds_only_the_rest_of_a_text() -> None:
    session, journal = running_session(), Journal()
    lines = journal.says("one ", "two ", "three")
    ingest(session, lines[:2])
    ingest(session, lines)
    assert conversation(session)[0][1] == "one two three"
    assert names(session) == ["session.message.added", "session.message.updated"]


@pytest.mark.django_db
def test_numbers_beyond_64_bits_are_stored() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.tool("t1", raw_output=2**70)])
    assert session.messages.get().payload["raw_output"] == 2**70
