"""An agent whose resume is unproven is asked for its last request, if its profile enables that."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessions_app.models import ContinuityReceipt, TaskSession, session_transaction
from sessions_app.recovery.continuity import last_user_request
from sessions_app.recovery.rules.verification import quotes_request
from sessions_app.turns.interruptions import explain_agent_deaths
from tests.agents.scripts import agent, chunk, result
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.native_resume import LAST_REQUEST, Resume
from tests.supervisor.rows import change, fresh

pytestmark = pytest.mark.django_db

REQUEST = "Rename the class Parser to Reader everywhere, and run the tests."


@pytest.mark.parametrize(
    ("answer", "request_", "quoted"),
    [
        (REQUEST, REQUEST, True),
        (f"Your last request was:\n> {REQUEST}", REQUEST, True),
        ("“write the parser”", "Write the parser!", True),
        ("UNKNOWN", REQUEST, False),
        ("", REQUEST, False),
        ("You asked me to write the parser, I think.", "parser", False),
        ("I was asked to rename a class.", REQUEST, False),
    ],
)
def test_answer_containing_the_request_quotes_it(answer: str, request_: str, quoted: bool) -> None:
    assert quotes_request(answer, request_) is quoted


def resumed_session(home: Path, *, memory_check: bool = True, replays: bool = False) -> TaskSession:
    """Return a session whose agent loaded its conversation, without a replay unless it ``replays``."""
    resume = Resume(home, "custom_acp")
    change(resume.session.agent_profile, memory_check=memory_check)
    replay = [chunk("user", LAST_REQUEST)] if replays else []
    return resume.run(agent(load=True, session_load=[*replay, result({})]))


def answer_check(session: TaskSession, *chunks: str, batches: int = 1) -> ContinuityReceipt:
    """Ingest a turn in which the agent answers the check; return its receipt."""
    row, journal = session.prompts.get(kind="check"), Journal("epoch-2")
    change(row, state="sending")
    begun, ended = [*journal.turn_begins(row.message_id), *journal.says(*chunks)], journal.completes(row.message_id)
    if batches == 1:
        ingest(session, [*begun, ended], lease=None)
    else:
        ingest(session, begun, lease=None)
        ingest(session, [ended], lease=None)
    receipt = session.receipts.first()
    assert receipt is not None
    return receipt


@pytest.mark.parametrize(("memory_check", "replays"), [(False, False), (True, True)])
def test_check_is_not_sent_when_disabled_or_unnecessary(memory_check: bool, replays: bool, tmp_path: Path) -> None:
    session = resumed_session(tmp_path, memory_check=memory_check, replays=replays)
    assert not session.prompts.filter(kind="check").exists()


@pytest.mark.parametrize("batches", [1, 2])
def test_quoted_request_proves_the_conversation(batches: int, tmp_path: Path) -> None:
    session = resumed_session(tmp_path)
    assert answer_check(session, "“write ", "the parser”", batches=batches).verified == "quoted"
    assert not session.attention.filter(kind="unproven", resolved_at=None).exists()


def test_answer_without_the_quote_is_unproven_and_reported(tmp_path: Path) -> None:
    session = resumed_session(tmp_path)
    receipt = answer_check(session, "UNKNOWN")
    assert receipt.verified == "unproven"
    assert "did not quote" in receipt.evidence["memory_check"]
    assert "did not quote" in session.attention.get(kind="unproven", resolved_at=None).why


def test_check_is_no_user_request_and_raises_no_idle_item(tmp_path: Path) -> None:
    session = resumed_session(tmp_path)
    looks = session.attention.filter(kind="idle", resolved_at=None).count()
    answer_check(session, "UNKNOWN")
    assert last_user_request(session.id) == LAST_REQUEST
    assert session.attention.filter(kind="idle", resolved_at=None).count() <= looks


def test_interrupted_check_is_not_continued(tmp_path: Path) -> None:
    session = change(resumed_session(tmp_path), continue_prompts=True)
    row, journal = session.prompts.get(kind="check"), Journal("epoch-2")
    change(row, state="sending")
    ingest(session, [*journal.turn_begins(row.message_id), journal.exits(row.message_id)], lease=None)
    assert fresh(row).state == "dismissed"
    assert not session.prompts.filter(kind="continue").exists()


def test_answered_check_does_not_reset_the_start_count(tmp_path: Path) -> None:
    session = change(resumed_session(tmp_path), start_attempts=3)
    answer_check(session, LAST_REQUEST)
    assert fresh(session).start_attempts == 3


def test_check_does_not_hide_repeated_deaths(tmp_path: Path) -> None:
    session = change(resumed_session(tmp_path), start_attempts=1)
    journal = Journal("epoch-2")
    ingest(session, [journal.line("agent.exited", exit_code=3, expected=False)], lease=None)
    row = session.prompts.get(kind="check")
    change(row, state="sending")
    ended = [*journal.turn_begins(row.message_id), *journal.says(LAST_REQUEST), journal.completes(row.message_id)]
    ingest(session, [*ended, journal.line("agent.exited", exit_code=4, expected=False)], lease=None)
    with session_transaction(session.id) as transaction:
        assert "2 times in a row (exit code 3, exit code 4)" in explain_agent_deaths(transaction)
