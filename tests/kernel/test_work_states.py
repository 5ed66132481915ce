"""Every event that changes a session's desired state and work state, and what its task shows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.board.services import tasks
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.models import Prompt, Task, TaskSession, session_transaction
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.starts.outcomes import write_stopped
from sessions_app.turns.interruptions import interrupt_turn, record_agent_stopped
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_runtime import DEAD, RecordingRuntime, sweep_once
from tests.supervisor.rows import change, execution_of, fresh, make_session, make_user, running_session

pytestmark = pytest.mark.django_db(transaction=True)
Step = Callable[[TaskSession, Journal], None]


def _turn_begins(session: TaskSession, journal: Journal) -> None:
    Prompt.objects.create(session=session, message_id="p1", text="do it", state="sending")
    ingest(session, journal.turn_begins("p1"))


def _turn_ends(session: TaskSession, journal: Journal) -> None:
    ingest(session, [journal.completes("p1")])


def _turn_fails(session: TaskSession, journal: Journal) -> None:
    ingest(session, [journal.line("turn.failed", message_id="p1", code="internal_error", message="It broke.")])


def _agent_dies(session: TaskSession, journal: Journal) -> None:
    with session_transaction(session.id) as transaction:
        interrupt_turn(transaction, "agent_gone")
        record_agent_stopped(transaction)


def _stopped(session: TaskSession, journal: Journal) -> None:
    intents.request_stop(session.id, make_user())
    _carried_out(session)


def _closed(session: TaskSession, journal: Journal) -> None:
    intents.request_close(session.id, make_user(), "completed")
    _carried_out(session, "completed")


def _archived(session: TaskSession, journal: Journal) -> None:
    tasks.archive_task(session.task, make_user())
    _carried_out(session)


def _finished(session: TaskSession, journal: Journal) -> None:
    tasks.finish_task(session.task, make_user())
    _carried_out(session)


def _carried_out(session: TaskSession, close_as: str = "") -> None:
    """Write what the supervisor writes when the execution has ended."""
    write_stopped(session.id, None, "closed" if close_as else "stopped", close_as)
    session.intents.update(done_at="2026-01-01T00:00:00Z")


def _resumed(session: TaskSession, journal: Journal) -> None:
    intents.request_resume(session.id, make_user())


def _prompted(session: TaskSession, journal: Journal) -> None:
    prompts.queue_prompt(session.id, "p2", "go on", make_user())


@pytest.mark.parametrize(
    ("steps", "desired", "work"),
    [
        ([], "running", "idle"),
        ([_turn_begins], "running", "working"),
        ([_turn_begins, _turn_ends], "running", "idle"),
        ([_turn_begins, _turn_fails], "running", "idle"),
        ([_turn_begins, _agent_dies], "running", "idle"),
        ([_turn_begins, _stopped], "stopped", "idle"),
        ([_stopped], "stopped", "idle"),
        ([_stopped, _resumed], "running", "idle"),
        ([_stopped, _prompted], "running", "idle"),
        ([_turn_begins, _closed], "stopped", "done"),
        ([_turn_begins, _archived], "stopped", "done"),
        ([_turn_begins, _finished], "stopped", "done"),
        ([_stopped, _archived], "stopped", "done"),
        ([_stopped, _finished], "stopped", "done"),
        ([_finished, _agent_dies], "stopped", "done"),
        ([_finished, _turn_ends], "stopped", "done"),
    ],
    ids=lambda value: "-".join(step.__name__ for step in value) or "new" if isinstance(value, list) else None,
)
def test_desired_and_work_state_follow_the_events(steps: list[Step], desired: str, work: str) -> None:
    session, journal = running_session(), Journal()
    for step in steps:
        step(session, journal)
    row = fresh(session)
    assert (row.desired_state, row.work_state) == (desired, work)
    shown = visible_tasks(make_user()).get(id=session.task_id)
    assert getattr(shown, "agent_work_state") == work  # noqa: B009  (an annotation of the query)


@pytest.mark.parametrize(("wanted", "desired"), [("running", "running"), ("stopped", "stopped")])
def test_new_session_has_the_desired_state_of_its_request(wanted: str, desired: str) -> None:
    made = make_session()
    session = tasks.create_session(
        make_user(), made.task, made.agent_profile, made.executor, desired_state=wanted, prompt="do it"
    )
    assert (fresh(session).desired_state, fresh(session).work_state) == (desired, "idle")
    assert session.intents.exists() is (wanted == "running")


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (["idle", "idle"], "idle"),
        (["idle", "working"], "working"),
        (["done", "working"], "working"),
        (["idle", "done"], "done"),
        (["done", "done"], "done"),
    ],
)
def test_task_shows_the_busiest_work_state_of_its_sessions(states: list[str], shown: str) -> None:
    first = running_session()
    sessions = [first, *(running_session(task=first.task) for _ in states[1:])]
    for session, state in zip(sessions, states, strict=True):
        change(session, work_state=state)
    found: Any = visible_tasks(make_user()).get(id=first.task_id)
    assert found.agent_work_state == shown
    assert Task.objects.count() == 1


def test_done_session_found_dead_gets_no_prompt_and_no_start(runtime: RecordingRuntime) -> None:
    session, journal = running_session(runtime=runtime.name), Journal()
    _turn_begins(session, journal)
    change(execution_of(session), owner="", lease_expires_at=None)
    tasks.finish_task(session.task, make_user())
    runtime.set_observation(session, DEAD)
    sweep_once()
    assert not session.prompts.filter(kind="continue").exists()
    assert not session.intents.filter(kind="start", done_at=None).exists()
