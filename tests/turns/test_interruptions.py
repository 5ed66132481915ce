"""Interrupted turns: what is recorded, and what follows automatically."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession, session_transaction
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.turns.interruptions import interrupt_turn
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    change,
    conversation,
    fresh,
    last_payload,
    make_user,
    names,
    permission_states,
    prompt_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db


def interrupted_session(delivered: bool = True, queued: str = "", **fields: Any) -> TaskSession:
    """Let the agent die while it works on ``p1``; ``queued`` is the kind of a prompt queued behind it."""
    session, journal = running_session(**fields), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    if queued:
        Prompt.objects.create(session=session, message_id="p2", text="and then", kind=queued)
    begins = journal.turn_begins("p1") if delivered else [journal.accepted("p1")]
    ingest(
        session,
        [*begins, *journal.says("I sh"), journal.tool("t1", title="rm -r build"), journal.requests_permission("q1")],
    )
    ingest(session, [journal.exits("p1")])
    return fresh(session)


def test_interruption_closes_everything_open_once() -> None:
    session = interrupted_session()
    assert runs(session) == [("p1", "interrupted")]
    assert permission_states(session) == {"q1": "expired"}
    assert [(role, complete) for role, _, _, complete in conversation(session)] == [
        ("user", True),
        ("agent", True),
        ("tool", True),
    ]
    assert conversation(session)[2][2]["status"] == "interrupted"
    assert names(session).count("session.run.interrupted") == 1
    assert last_payload(session, "session.run.interrupted")["unfinished_tools"] == ["rm -r build"]
    assert (session.state, session.work_state, session.launch_id) == ("WAITING_FOR_INPUT", "idle", "")


def test_interruption_is_recorded_once_whoever_finds_it() -> None:
    session = interrupted_session()
    before = session.last_seq
    for _ in range(2):
        with session_transaction(session.id) as transaction:
            assert not interrupt_turn(transaction, "agent_gone")
    assert fresh(session).last_seq == before


def test_interruption_that_no_journal_tells_of_closes_the_messages_too() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.tool("t1", title="rm -r build")])
    with session_transaction(session.id) as transaction:
        assert interrupt_turn(transaction, "agentctl_gone")
    role, _, payload, complete = conversation(session)[-1]
    assert (role, payload["status"], complete) == ("tool", "interrupted", True)


def test_exit_between_turns_interrupts_nothing() -> None:
    session, journal = running_session(), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.completes("p1"), journal.exits()])
    assert runs(session) == [("p1", "completed")]
    assert names(session)[-1] == "session.agent_exited"
    assert "session.run.interrupted" not in names(session)
    assert not Prompt.objects.filter(kind="continue").exists()


@pytest.mark.parametrize(
    ("state", "after"),
    [
        ("queued", "queued"),
        ("sending", "sending"),
        ("accepted", "held"),
        ("delivered", "interrupted"),
        ("held", "held"),
        ("done", "done"),
        ("dismissed", "dismissed"),
    ],
)
def test_interrupted_prompt_is_settled_by_its_delivery_state(state: str, after: str) -> None:
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state=state)
    with session_transaction(session.id) as transaction:
        transaction.start_run("another")
        interrupt_turn(transaction, "agent_gone")
    assert prompt_states(session)["p1"] == after


CONTINUED, INFORMED, NEITHER = "continued", "told", "neither"


@pytest.mark.parametrize(
    ("fields", "deployment", "delivered", "queued", "outcome"),
    [
        ({"policy": "auto"}, "", True, "", CONTINUED),
        ({"policy": "working"}, "", True, "", INFORMED),
        ({"policy": "on_open"}, "", True, "", INFORMED),
        ({"policy": "manual"}, "", True, "", INFORMED),
        ({"policy": "auto"}, "off", True, "", INFORMED),
        ({"policy": "manual"}, "on", True, "", CONTINUED),
        ({"policy": "auto", "continue_prompts": False}, "on", True, "", INFORMED),
        ({"policy": "manual", "continue_prompts": True}, "off", True, "", CONTINUED),
        ({"policy": "auto"}, "", False, "", NEITHER),
        ({"policy": "auto", "stopped_by_user": True}, "", True, "", INFORMED),
        ({"policy": "auto"}, "", True, "user", INFORMED),
        ({"policy": "manual"}, "", True, "user", INFORMED),
        ({"policy": "auto"}, "", True, "wait", CONTINUED),
    ],
)
def test_interruption_is_continued_or_described_or_neither(
    settings: Any, fields: dict[str, Any], deployment: str, delivered: bool, queued: str, outcome: str
) -> None:
    settings.KANDEV_CONTINUE = deployment
    session = interrupted_session(delivered, queued, **fields)
    made = Prompt.objects.filter(session=session, kind="continue").exists()
    kept = prompts.unfinished_of(session) is not None
    assert {(True, True): CONTINUED, (False, True): INFORMED, (False, False): NEITHER}[made, kept] == outcome


def test_continue_prompt_has_the_run_id_and_lists_lost_work() -> None:
    session = interrupted_session()
    run = session.runs.get()
    row = session.prompts.get(kind="continue")
    assert (row.message_id, row.state) == (f"continue:{run.id}", "queued")
    assert session.prompts.get(message_id="p1").continued_by == row
    for line in ("Faster parser", "> write it", "- rm -r build"):
        assert line in row.text
    recorded = names(session)
    assert recorded.index("session.run.interrupted") < recorded.index("session.prompt.queued")


def test_next_prompt_describes_the_interrupted_request() -> None:
    session = interrupted_session(queued="user")
    context = prompts.context_before(session, session.prompts.get(message_id="p2"))
    assert "> write it" in context
    assert "- rm -r build" in context
    assert "Verify what is there before you repeat" in context
    assert prompt_states(session) == {"p1": "interrupted", "p2": "queued"}


def test_workspace_findings_are_added_to_continue_and_next_prompts() -> None:
    session = interrupted_session()
    with session_transaction(session.id) as transaction:
        prompts.add_workspace_findings(transaction, ["modified parser.py", "added new.py"], ["npm run dev"])
    session = fresh(session)
    row, later = session.prompts.get(kind="continue"), Prompt(kind="user", text="and then")
    for text in (row.text, prompts.context_before(session, later)):
        for line in ("> write it", "- rm -r build", "- modified parser.py", "- added new.py", "- npm run dev"):
            assert line in text
    assert prompts.context_before(session, row) == ""


def snapshot(journal: Journal, commit: str) -> dict[str, Any]:
    return journal.line("workspace.snapshot", commit=commit, ref="r", reason="turn_start", dirty=True)


@pytest.mark.parametrize("at_once", [True, False])
def test_changes_are_counted_from_the_snapshot_before_the_turn(at_once: bool) -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    accepted, delivered = journal.accepted("p1"), "a" * 40
    lines = [accepted, snapshot(journal, delivered), journal.line("prompt.delivered", message_id="p1")]
    lines.append(snapshot(journal, "b" * 40))
    for batch in [lines] if at_once else [[line] for line in lines]:
        ingest(session, batch)
    ingest(session, [journal.exits("p1")])
    known = prompts.unfinished_of(fresh(session))
    assert known is not None
    assert known["since"] == "a" * 40


def test_interrupted_run_records_whether_it_was_waiting() -> None:
    session = interrupted_session()
    assert session.runs.get().waited
    other, journal = running_session(), Journal()
    ingest(other, [*journal.turn_begins("p1"), journal.exits("p1")])
    assert not other.runs.get().waited


def test_cancelled_turn_whose_agent_dies_is_not_continued() -> None:
    session, journal = running_session(policy="auto"), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    ingest(session, journal.turn_begins("p1"))
    assert intents.request_cancel(session.id, make_user())
    ingest(session, [journal.exits("p1")])
    assert prompt_states(session) == {"p1": "interrupted"}
    assert prompts.unfinished_of(fresh(session)) is None


def test_changes_are_counted_for_a_turn_within_one_batch() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    lines = [snapshot(journal, "a" * 40), *journal.turn_begins("p1"), snapshot(journal, "b" * 40), journal.exits("p1")]
    ingest(session, lines)
    known = prompts.unfinished_of(fresh(session))
    assert known is not None
    assert known["since"] == "a" * 40


def test_turn_that_began_with_an_unknown_snapshot_names_no_changes() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    ingest(session, [snapshot(journal, "a" * 40), *journal.turn_begins("p1")])
    change(session.runs.get(), snapshot_before=None)
    ingest(session, [snapshot(journal, "b" * 40), journal.exits("p1")])
    assert prompts.snapshot_to_compare(fresh(session)) == ""
