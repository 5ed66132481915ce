"""A batch of journal lines is written once, completely, and only by the holder of the lease."""

from __future__ import annotations

import pytest

from executors_app.models import ExecutorRunning
from executors_app.wire.protocol import JournalKind
from sessions_app.models import Intent, Lease, LeaseLost
from tests.supervisor import database_dump
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, conversation, execution_of, fresh, last_payload, names, running_session

pytestmark = pytest.mark.django_db


def test_cursor_is_written_together_with_the_lines() -> None:
    session, journal = running_session(), Journal()
    done = ingest(session, [*journal.turn_begins("p1"), *journal.says("hello")])
    row = execution_of(session)
    assert (done.epoch, done.seq) == (row.journal_epoch, row.journal_seq) == ("epoch-1", 3)


def test_repeated_batch_changes_nothing() -> None:
    session, journal = running_session(), Journal()
    batch = [*journal.turn_begins("p1"), *journal.says("hello"), journal.tool("t1"), journal.exits("p1")]
    ingest(session, batch)
    before = database_dump.dump(leaving_out=database_dump.MOMENTS)
    ingest(session, batch)
    assert database_dump.dump(leaving_out=database_dump.MOMENTS) == before


def test_overlapping_batch_adds_only_new_lines() -> None:
    session, journal = running_session(), Journal()
    first, second, third = journal.says("one ", "two ", "three")
    ingest(session, [first, second])
    ingest(session, [second, third])
    assert conversation(session)[0][1] == "one two three"
    assert "session.journal_gap" not in names(session)


@pytest.mark.parametrize("started", [True, False], ids=["after other lines", "at the start"])
def test_missing_journal_lines_are_reported(started: bool) -> None:
    session, journal = running_session(), Journal()
    first, _, third = journal.says("one ", "two ", "three")
    ingest(session, [first, third] if started else [third])
    assert names(session).count("session.journal_gap") == 1
    assert last_payload(session, "session.journal_gap")["reason"] == "lines_missing"


def test_new_epoch_is_reported_and_read_from_its_start() -> None:
    session = running_session()
    ingest(session, Journal("epoch-1").says("one ", "two "))
    seen = execution_of(session).last_seen_at
    ingest(session, Journal("epoch-2").says("three"))
    gap = last_payload(session, "session.journal_gap")
    assert names(session).count("session.journal_gap") == 1
    assert (gap["reason"], gap["since"]) == ("new_epoch", seen.isoformat() if seen else None)
    assert conversation(session)[0][1] == "one two three"
    assert execution_of(session).journal_epoch == "epoch-2"


@pytest.mark.parametrize(
    "lease", [Lease("somebody else", 1), Lease("me", 0), Lease("me", 2)], ids=["owner", "older", "newer"]
)
def test_writes_without_the_lease_are_rejected(lease: Lease) -> None:
    session = running_session()
    before = database_dump.dump()
    with pytest.raises(LeaseLost):
        ingest(session, Journal().turn_begins("p1"), lease=lease, token={"resume_token": "stolen"})
    assert database_dump.dump() == before


def test_resume_token_is_stored_with_the_cursor() -> None:
    session, journal = running_session(), Journal()
    line = journal.line(JournalKind.SESSION_IDENTIFIED, fingerprint="f", last_message_uuid="u")
    ingest(session, [line], token={"resume_token": "conversation-2", "last_message_uuid": "u"})
    row = execution_of(session)
    assert (row.resume_token, row.last_message_uuid, row.journal_seq) == ("conversation-2", "u", 1)


@pytest.mark.parametrize(("strategy", "kept"), [("fresh", "conversation-1"), ("native", "conversation-2")])
def test_token_of_a_conversation_being_opened_replaces_no_other(strategy: str, kept: str) -> None:
    session, journal = running_session(), Journal()
    Intent.objects.create(session=session, kind="start", payload={"mode": "auto", "strategy": strategy})
    ingest(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": "conversation-2"})
    assert execution_of(session).resume_token == kept


def test_agent_without_a_token_keeps_the_stored_one() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": None})
    assert execution_of(session).resume_token == "conversation-1"


def test_rejected_token_is_not_restored_from_disk() -> None:
    session = running_session(execution={"resume_token": "", "rejected_resume_token": "conversation-1"})
    ingest(session, [], token={"resume_token": "conversation-1"})
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")


def test_resume_token_appears_in_no_event() -> None:
    session, journal = running_session(), Journal()
    lines = [
        journal.line(JournalKind.SESSION_IDENTIFIED, fingerprint="f"),
        *journal.turn_begins("p1"),
        journal.exits("p1"),
    ]
    ingest(session, lines, token={"resume_token": "conversation-secret"})
    assert "conversation-secret" not in str(list(session.events.values()))


def test_session_without_an_execution_cannot_ingest() -> None:
    session = change(running_session(), agent_execution_id=None)
    with pytest.raises(ExecutorRunning.DoesNotExist):
        ingest(session, Journal().says("hello"), lease=None)
    assert fresh(session).last_seq == 0


def test_events_carry_the_time_of_the_journal_line() -> None:
    session, journal = running_session(), Journal()
    (line,) = journal.says("hello")
    ingest(session, [line])
    assert session.events.get().at.timestamp() == line["ts"]


def test_query_count_does_not_grow_with_the_number_of_chunks() -> None:
    few, many = running_session(), running_session()
    counts = []
    for session, chunks in ((few, 2), (many, 200)):
        journal = Journal()
        ingest(session, journal.turn_begins("p1"))
        with database_dump.counting() as queries:
            ingest(session, journal.says(*["x"] * chunks))
        counts.append(len(queries))
    assert counts[0] == counts[1]
