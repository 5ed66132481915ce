"""How each kind of journal line changes a session."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.wire.protocol import JournalKind
from sessions_app.journal import LINE_HANDLERS, UNHANDLED_KINDS, UNSTORABLE
from sessions_app.models import Prompt, TaskSession
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import (
    conversation,
    execution_of,
    fresh,
    last_payload,
    names,
    permission_states,
    prompt_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db

ADDED, RUN, PROMPT = "session.message.added", "session.run.", "session.prompt."
DERIVED, MINTED = "session.status_derived", "session.token.minted"
AT_REST = ("session.state_changed", "session.work_state_changed")

# kind, body, events added to the log of a session in mid-turn, state afterwards
TABLE: list[tuple[JournalKind, dict[str, Any], tuple[str, ...], str]] = [
    (JournalKind.AGENT_STARTING, {"launch_id": "l", "strategy": "fresh"}, (), "RUNNING"),
    (JournalKind.AGENT_STARTED, {"launch_id": "l", "pid": 7}, (), "RUNNING"),
    (JournalKind.AGENT_FAILED, {"launch_id": "l", "code": "spawn_failed"}, (), "RUNNING"),
    (JournalKind.SESSION_CREATED, {"fingerprint": "f"}, (), "RUNNING"),
    (JournalKind.SESSION_RESUMED, {"fingerprint": "f"}, (), "RUNNING"),
    (JournalKind.SESSION_LOADED, {"fingerprint": "f", "replayed": 3}, (), "RUNNING"),
    (JournalKind.SESSION_IDENTIFIED, {"fingerprint": "f"}, (), "RUNNING"),
    (
        JournalKind.PROMPT_ACCEPTED,
        {"message_id": "p2", "text": "again"},
        (RUN + "completed", RUN + "started", ADDED),
        "RUNNING",
    ),
    (JournalKind.PROMPT_DELIVERED, {"message_id": "p1"}, (), "RUNNING"),
    (JournalKind.PROMPT_DELIVERED, {"message_id": "nobody's"}, (), "RUNNING"),
    (JournalKind.STEER_ACCEPTED, {"message_id": "nobody's", "turn": "p1", "text": "x"}, (), "RUNNING"),
    (JournalKind.STEER_DELIVERED, {"message_id": "nobody's", "turn": "p1"}, (), "RUNNING"),
    (JournalKind.STEER_DECLINED, {"message_id": "nobody's", "turn": "p1"}, (), "RUNNING"),
    (JournalKind.STEER_UNKNOWN, {"message_id": "nobody's", "turn": "p1"}, (), "RUNNING"),
    (JournalKind.MESSAGE_USER, {"text": "not ours"}, (ADDED,), "RUNNING"),
    (JournalKind.MESSAGE_AGENT, {"text": "hello"}, (ADDED,), "RUNNING"),
    (JournalKind.MESSAGE_AGENT, {"text": ""}, (), "RUNNING"),
    (JournalKind.MESSAGE_THOUGHT, {"text": "hm"}, (ADDED,), "RUNNING"),
    (JournalKind.MESSAGE_SUB_AGENT, {"text": "hi", "sub_agent": "Sub-agent 1"}, (ADDED,), "RUNNING"),
    (JournalKind.TOOL_CALL, {"tool_call_id": "t1", "title": "ls", "status": "pending"}, (ADDED,), "RUNNING"),
    (JournalKind.TOOL_UPDATE, {"tool_call_id": "t1", "status": "completed"}, (ADDED,), "RUNNING"),
    (JournalKind.AGENT_SETTINGS, {"settings": [], "reason": "opened"}, ("session.agent.settings",), "RUNNING"),
    (JournalKind.AGENT_COMMANDS, {"commands": []}, ("session.agent.commands",), "RUNNING"),
    (JournalKind.AGENT_TITLE, {"title": "Fences"}, ("session.agent.title",), "RUNNING"),
    (JournalKind.MCP_SERVERS_LEFT_OUT, {"launch_id": "l", "servers": [{"name": "docs"}]}, (), "RUNNING"),
    (JournalKind.SETTING_APPLIED, {"change_id": "nobody's", "setting": "mode", "value": "plan"}, (), "RUNNING"),
    (JournalKind.SETTING_REFUSED, {"change_id": "nobody's", "setting": "mode", "code": "x"}, (), "RUNNING"),
    (JournalKind.PLAN, {"entries": [{"content": "first"}]}, (ADDED,), "RUNNING"),
    (
        JournalKind.PERMISSION_REQUESTED,
        {"permission_id": "q1", "tool_call": {}, "options": []},
        (RUN + "waiting", MINTED, "session.permission.requested", DERIVED),
        "RUNNING",
    ),
    (JournalKind.PERMISSION_RESOLVED, {"permission_id": "nobody's", "option_id": "yes"}, (), "RUNNING"),
    (JournalKind.PERMISSION_CANCELLED, {"permission_id": "nobody's", "reason": "stopped"}, (), "RUNNING"),
    (
        JournalKind.TURN_COMPLETED,
        {"message_id": "p1", "stop_reason": "end_turn"},
        (PROMPT + "done", RUN + "completed", *AT_REST, DERIVED),
        "WAITING_FOR_INPUT",
    ),
    (
        JournalKind.TURN_CANCELLED,
        {"message_id": "p1"},
        (PROMPT + "done", RUN + "cancelled", *AT_REST, DERIVED),
        "WAITING_FOR_INPUT",
    ),
    (
        JournalKind.TURN_FAILED,
        {"message_id": "p1", "code": "refused", "message": "No."},
        (PROMPT + "done", RUN + "failed", *AT_REST, ADDED, DERIVED),
        "WAITING_FOR_INPUT",
    ),
    (JournalKind.AGENT_TURN_ENDED, {"stop_reason": "end_turn"}, (), "RUNNING"),
    (
        JournalKind.AGENT_EXITED,
        {"exit_code": 9, "expected": False, "message_id": "p1"},
        (
            RUN + "interrupted",
            PROMPT + "interrupted",
            PROMPT + "dismissed",
            PROMPT + "queued",
            *reversed(AT_REST),
            "session.agent_exited",
            DERIVED,
        ),
        "WAITING_FOR_INPUT",
    ),
    (JournalKind.USAGE, {"tokens": 5}, (), "RUNNING"),
    (JournalKind.WORKSPACE_SNAPSHOT, {"ref": "r", "commit": "c"}, ("session.workspace.changed",), "RUNNING"),
    (
        JournalKind.AGENT_PROCESSES,
        {"processes": [{"command": "sleep 9", "since": "2026-01-31T12:00:00+00:00"}], "count": 1},
        ("session.processes",),
        "RUNNING",
    ),
    (JournalKind.AGENTCTL_ABANDONED, {}, ("session.agentctl_abandoned",), "RUNNING"),
    (JournalKind.LOG, {"level": "info", "text": "hello"}, (), "RUNNING"),
    (JournalKind.LOG, {"level": "warning", "text": "hello"}, ("session.warning",), "RUNNING"),
]


def in_mid_turn(journal: Journal) -> TaskSession:
    """Return a session whose agent works on the prompt ``p1``."""
    session = running_session()
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    ingest(session, journal.turn_begins("p1"))
    return fresh(session)


@pytest.mark.parametrize(
    ("kind", "body", "recorded", "state"), TABLE, ids=[f"{line[0]}-{number}" for number, line in enumerate(TABLE)]
)
def test_journal_line_produces_these_events_and_this_state(
    kind: JournalKind, body: dict[str, Any], recorded: tuple[str, ...], state: str
) -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.line(kind, **body)])
    assert tuple(names(session, after=session.last_seq)) == recorded
    assert fresh(session).state == state
    assert execution_of(session).journal_seq == journal.seq


def test_table_covers_every_kind_of_journal_line() -> None:
    assert {line[0] for line in TABLE} == set(JournalKind)


def test_every_kind_of_journal_line_has_one_handler_or_none() -> None:
    assert LINE_HANDLERS.keys() - {UNSTORABLE} == set(JournalKind) - UNHANDLED_KINDS
    assert UNHANDLED_KINDS.issubset(set(JournalKind))


def test_unknown_kind_changes_only_the_cursor() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.line("zebra.seen", stripes=40)])
    assert names(session, after=session.last_seq) == []
    assert execution_of(session).journal_seq == 3


def test_prompt_enters_the_conversation_when_the_agent_accepts_it() -> None:
    session, journal = running_session(), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="ours", state="sending")
    assert conversation(session) == []
    ingest(session, [journal.accepted("p1", text="history, then ours")])
    assert conversation(session) == [("user", "ours", {"kind": "user"}, True)]
    assert prompt_states(session) == {"p1": "accepted"}
    assert runs(session) == [("p1", "running")]
    assert (fresh(session).state, fresh(session).work_state) == ("RUNNING", "working")


def test_task_is_in_progress_during_the_turn_and_in_review_after() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    assert session.task.state == "IN_PROGRESS"
    ingest(session, [journal.completes("p1")])
    assert fresh(session).task.state == "REVIEW"


def test_user_text_from_the_agent_is_shown_as_attributed() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.line(JournalKind.MESSAGE_USER, text="I am the user")])
    assert conversation(session)[-1] == ("status", "I am the user", {"attributed_to": "user"}, True)


def test_tool_call_is_one_message_from_start_to_result() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.tool("t1", title="ls", raw_input={"path": "."})])
    ingest(session, [journal.line(JournalKind.TOOL_UPDATE, tool_call_id="t1", status="completed", raw_output="a b")])
    ingest(session, [journal.line(JournalKind.TOOL_UPDATE, tool_call_id="t1", locations=["a"])])
    role, _, payload, complete = conversation(session)[-1]
    assert (role, complete, len(conversation(session))) == ("tool", True, 2)
    assert payload == {
        "tool_call_id": "t1",
        "title": "ls",
        "raw_input": {"path": "."},
        "status": "completed",
        "raw_output": "a b",
        "locations": ["a"],
    }


def test_plan_is_one_message_per_turn_and_replaced_as_a_whole() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.line(JournalKind.PLAN, entries=["a", "b"]), journal.line(JournalKind.PLAN, entries=["b"])])
    ingest(
        session, [journal.completes("p1"), *journal.turn_begins("p2"), journal.line(JournalKind.PLAN, entries=["c"])]
    )
    plans = [payload["plan"] for _, _, payload, _ in conversation(session) if "plan" in payload]
    assert plans == [["b"], ["c"]]


def test_text_after_a_plan_is_a_message_of_its_own() -> None:
    session, journal = running_session(), Journal()
    begin = [*journal.turn_begins("p1"), *journal.says("before")]
    ingest(session, [*begin, journal.line(JournalKind.PLAN, entries=["a"]), *journal.says("after")])
    ingest(session, [*journal.says(" and"), journal.line(JournalKind.PLAN, entries=["b"]), *journal.says("last")])
    messages = [(role, text) for role, text, *_ in conversation(session)][1:]
    assert messages == [("agent", "before"), ("status", ""), ("agent", "after and"), ("agent", "last")]


def test_turn_waits_until_all_permission_requests_are_settled() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.requests_permission("q1"), journal.requests_permission("q2")])
    assert runs(session) == [("p1", "waiting")]
    ingest(session, [journal.line(JournalKind.PERMISSION_RESOLVED, permission_id="q1", option_id="yes")])
    assert permission_states(session) == {"q1": "resolved", "q2": "pending"}
    assert runs(session) == [("p1", "waiting")]
    ingest(session, [journal.line(JournalKind.PERMISSION_CANCELLED, permission_id="q2", reason="turn_cancelled")])
    assert permission_states(session) == {"q1": "resolved", "q2": "cancelled"}
    assert runs(session) == [("p1", "running")]
    assert last_payload(session, "session.permission.resolved")["reason"] == "turn_cancelled"


def test_permission_requested_twice_is_recorded_once() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.requests_permission("q1")])
    ingest(session, [journal.requests_permission("q1")])
    assert names(session).count("session.permission.requested") == 1


@pytest.mark.parametrize(
    ("kind", "status"), [(JournalKind.TURN_CANCELLED, "cancelled"), (JournalKind.TURN_FAILED, "cancelled")]
)
def test_tools_of_a_turn_that_did_not_complete_are_cancelled(kind: JournalKind, status: str) -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.tool("t1"), journal.line(kind, message_id="p1", code="x", message="y")])
    tool = next(one for one in conversation(session) if one[0] == "tool")
    assert (tool[2]["status"], tool[3]) == (status, True)


def test_end_of_a_turn_is_recorded_once() -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    ingest(session, [journal.completes("p1")])
    ingest(session, [journal.completes("p1"), journal.line(JournalKind.TURN_CANCELLED, message_id="p1")])
    assert names(session).count("session.run.completed") == 1
    assert "session.run.cancelled" not in names(session)


@pytest.mark.parametrize(
    ("kind", "attempts"),
    [(JournalKind.TURN_COMPLETED, 0), (JournalKind.TURN_FAILED, 3), (JournalKind.TURN_CANCELLED, 3)],
)
def test_only_a_completed_turn_resets_the_start_count(kind: JournalKind, attempts: int) -> None:
    session, journal = running_session(start_attempts=3), Journal()
    ingest(session, [*journal.turn_begins("p1"), journal.line(kind, message_id="p1", code="x", message="y")])
    assert fresh(session).start_attempts == attempts


def test_only_an_unexpected_exit_needs_recovery() -> None:
    session, journal = running_session(), Journal()
    assert not ingest(session, [journal.exits(expected=True)]).agent_gone
    assert ingest(session, [journal.exits()]).agent_gone
    assert fresh(session).launch_id == ""


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED"])
def test_ended_session_still_records_its_log(state: str) -> None:
    journal = Journal()
    session = in_mid_turn(journal)
    type(session).objects.filter(id=session.id).update(state=state, work_state="done")
    ingest(
        session,
        [*journal.says("last words"), journal.requests_permission("q1"), journal.tool("t1"), journal.exits("p1")],
    )
    assert conversation(session)[1][:2] == ("agent", "last words")
    assert (fresh(session).state, fresh(session).work_state) == (state, "done")
    assert runs(session) == [("p1", "interrupted")]
    assert permission_states(session) == {"q1": "expired"}


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED"])
def test_turn_after_the_end_does_not_reopen_the_session(state: str) -> None:
    journal = Journal()
    session = running_session(state=state, work_state="done")
    ingest(session, [*journal.turn_begins("p1"), *journal.says("hello"), journal.completes("p1")])
    assert (fresh(session).state, fresh(session).work_state) == (state, "done")
    assert runs(session) == [("p1", "completed")]
