"""A batch of journal lines is written once, whole, and by the holder of the lease alone."""

from __future__ import annotations

import pytest

from executors_app.agentctl.protocol import JournalKind
from executors_app.models import ExecutorRunning
from sessions_app.models import Intent, Lease, LeaseLost
from tests.supervisor import tables
from tests.supervisor.journals import Journal, hear
from tests.supervisor.rows import change, conversation, execution_of, fresh, last_payload, names, running_session

pytestmark = pytest.mark.django_db


def test_the_cursor_goes_with_the_lines() -> None:
    session, journal = running_session(), Journal()
    done = hear(session, [*journal.turn_begins("p1"), *journal.says("hello")])
    row = execution_of(session)
    assert (done.epoch, done.seq) == (row.journal_epoch, row.journal_seq) == ("epoch-1", 3)


def test_a_batch_that_comes_twice_changes_nothing() -> None:
    session, journal = running_session(), Journal()
    batch = [*journal.turn_begins("p1"), *journal.says("hello"), journal.tool("t1"), journal.exits("p1")]
    hear(session, batch)
    before = tables.dump(leaving_out=tables.MOMENTS)
    hear(session, batch)
    assert tables.dump(leaving_out=tables.MOMENTS) == before


def test_of_a_batch_that_overlaps_only_the_rest_is_new() -> None:
    session, journal = running_session(), Journal()
    first, second, third = journal.says("one ", "two ", "three")
    hear(session, [first, second])
    hear(session, [second, third])
    assert conversation(session)[0][1] == "one two three"
    assert "session.journal_gap" not in names(session)


@pytest.mark.parametrize("started", [True, False], ids=["behind lines", "at the start"])
def test_a_hole_in_the_journal_is_said(started: bool) -> None:
    session, journal = running_session(), Journal()
    first, _, third = journal.says("one ", "two ", "three")
    hear(session, [first, third] if started else [third])
    assert names(session).count("session.journal_gap") == 1
    assert last_payload(session, "session.journal_gap")["reason"] == "lines_missing"


def test_another_epoch_is_said_and_begins_at_its_start() -> None:
    session = running_session()
    hear(session, Journal("epoch-1").says("one ", "two "))
    seen = execution_of(session).last_seen_at
    hear(session, Journal("epoch-2").says("three"))
    gap = last_payload(session, "session.journal_gap")
    assert names(session).count("session.journal_gap") == 1
    assert (gap["reason"], gap["since"]) == ("new_epoch", seen.isoformat() if seen else None)
    assert conversation(session)[0][1] == "one two three"
    assert execution_of(session).journal_epoch == "epoch-2"


@pytest.mark.parametrize(
    "lease", [Lease("somebody else", 1), Lease("me", 0), Lease("me", 2)], ids=["owner", "older", "newer"]
)
def test_who_does_not_hold_the_lease_writes_nothing(lease: Lease) -> None:
    session = running_session()
    before = tables.dump()
    with pytest.raises(LeaseLost):
        hear(session, Journal().turn_begins("p1"), lease=lease, token={"resume_token": "stolen"})
    assert tables.dump() == before


def test_a_token_is_kept_with_the_cursor() -> None:
    session, journal = running_session(), Journal()
    line = journal.line(JournalKind.SESSION_IDENTIFIED, fingerprint="f", last_message_uuid="u")
    hear(session, [line], token={"resume_token": "conversation-2", "last_message_uuid": "u"})
    row = execution_of(session)
    assert (row.resume_token, row.last_message_uuid, row.journal_seq) == ("conversation-2", "u", 1)


@pytest.mark.parametrize(("strategy", "kept"), [("fresh", "conversation-1"), ("native", "conversation-2")])
def test_a_conversation_that_is_still_being_opened_takes_no_place_of_another(strategy: str, kept: str) -> None:
    session, journal = running_session(), Journal()
    Intent.objects.create(session=session, kind="start", payload={"mode": "auto", "strategy": strategy})
    hear(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": "conversation-2"})
    assert execution_of(session).resume_token == kept


def test_an_agent_without_a_token_takes_none_away() -> None:
    session, journal = running_session(), Journal()
    hear(session, [journal.line(JournalKind.SESSION_IDENTIFIED)], token={"resume_token": None})
    assert execution_of(session).resume_token == "conversation-1"


def test_a_token_that_was_rejected_does_not_come_back_from_the_disk() -> None:
    session = running_session(execution={"resume_token": "", "rejected_resume_token": "conversation-1"})
    hear(session, [], token={"resume_token": "conversation-1"})
    row = execution_of(session)
    assert (row.resume_token, row.rejected_resume_token) == ("", "conversation-1")


def test_the_token_is_in_no_event() -> None:
    session, journal = running_session(), Journal()
    lines = [
        journal.line(JournalKind.SESSION_IDENTIFIED, fingerprint="f"),
        *journal.turn_begins("p1"),
        journal.exits("p1"),
    ]
    hear(session, lines, token={"resume_token": "conversation-secret"})
    assert "conversation-secret" not in str(list(session.events.values()))


def test_a_session_without_an_execution_cannot_hear_anything() -> None:
    session = change(running_session(), agent_execution_id=None)
    with pytest.raises(ExecutorRunning.DoesNotExist):
        hear(session, Journal().says("hello"), lease=None)
    assert fresh(session).last_seq == 0


def test_events_carry_the_moment_at_which_the_agent_did_it() -> None:
    session, journal = running_session(), Journal()
    (line,) = journal.says("hello")
    hear(session, [line])
    assert session.events.get().at.timestamp() == line["ts"]


def test_the_work_of_a_batch_does_not_grow_with_its_chunks() -> None:
    few, many = running_session(), running_session()
    counts = []
    for session, chunks in ((few, 2), (many, 200)):
        journal = Journal()
        hear(session, journal.turn_begins("p1"))
        with tables.counting() as queries:
            hear(session, journal.says(*["x"] * chunks))
        counts.append(len(queries))
    assert counts[0] == counts[1]
