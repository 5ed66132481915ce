"""Two users: Ada's team has a task with a session, and Bob belongs to another team."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth.models import Group, User
from django.utils import timezone

from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.journal import LineApplier
from sessions_app.models import (
    Prompt,
    RecoverySweep,
    Repository,
    SessionTransaction,
    Supervisor,
    Task,
    TaskSession,
    session_transaction,
)
from sessions_app.stream.conversation import schedule_writes

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


@dataclass
class World:
    """Two users of two teams; everything created here belongs to Ada's team."""

    ada: User
    bob: User
    team: Group
    repository: Repository
    profile: AgentProfile
    executor: Executor

    def task(self, title: str = "Fix the tests", **values: Any) -> Task:
        """Create a task of Ada's team."""
        return create_task(self.ada, {"title": title, "team": self.team, "repository": self.repository, **values})

    def session(self, prompt: str = "Look at the tests.", **values: Any) -> TaskSession:
        """Create a session that has not been started."""
        return create_session(self.ada, self.task(), self.profile, self.executor, prompt=prompt, **values)

    def running_session(self) -> TaskSession:
        """Create a session whose agent is working on its first prompt."""
        session = self.session()
        session.intents.update(done_at=timezone.now())
        with session_transaction(session.id) as transaction:
            transaction.move_executor("launch")
            transaction.move_executor("ready")
            transaction.set_fields(launch_id="a-launch")
            transaction.move_session("start")
            transaction.move_session("ready")
        ingest_lines(session, accepted(session))
        session.refresh_from_db()
        return session

    def resting_session(self, **execution: Any) -> TaskSession:
        """Create a session that has finished a turn and whose agent has exited."""
        session = self.running_session()
        ingest_lines(session, {"kind": "turn.completed", "message_id": first_prompt(session).message_id})
        with session_transaction(session.id) as transaction:
            transaction.move_executor("stop")
            transaction.set_fields(launch_id="")
        ExecutorRunning.objects.filter(session=session).update(**execution)
        session.refresh_from_db()
        return session


def make_world() -> World:
    """Create both teams, and what Ada's team needs to work."""
    team, other = Group.objects.create(name="Ada's team"), Group.objects.create(name="Bob's team")
    ada, bob = User.objects.create_user("ada", password="lovelace"), User.objects.create_user("bob")
    ada.groups.add(team)
    bob.groups.add(other)
    return World(
        ada,
        bob,
        team,
        Repository.objects.create(name="engine", team=team, path="/srv/engine"),
        AgentProfile.objects.create(name="Demo", agent_type="demo"),
        Executor.objects.create(name="Here", runtime="local_standalone"),
    )


def make_sweep(session: TaskSession | None = None, **outcomes: int) -> RecoverySweep:
    """Create a boot sweep with a row for ``session``."""
    sweep = RecoverySweep.objects.create(
        boot_id="b", trigger="boot", started_at=timezone.now(), duration_ms=42, examined=4, outcomes=outcomes
    )
    if session is not None:
        sweep.rows.create(
            session=session,
            observed="dead",
            rule="dead_resume_now",
            agent_action="resume",
            strategy="native",
            receipt_kind="loaded",
        )
    return sweep


def supervise() -> None:
    """Register a live supervisor that has finished its sweep."""
    now = timezone.now()
    Supervisor.objects.create(boot_id="boot", host_id="host", started_at=now, beat_at=now, swept_at=now)


def first_prompt(session: TaskSession) -> Prompt:
    """Return the prompt that the session was created with."""
    prompt: Prompt = session.prompts.earliest("id")
    return prompt


def accepted(session: TaskSession) -> dict[str, Any]:
    """Return the journal line with which the agent accepts the first prompt."""
    session.prompts.update(state="sending")
    return {"kind": "prompt.accepted", "message_id": first_prompt(session).message_id}


def ingest_lines(session: TaskSession, *lines: dict[str, Any]) -> None:
    """Write journal lines into the session's log."""
    with session_transaction(session.id) as transaction:
        _fold(transaction, lines)


def _fold(transaction: SessionTransaction, lines: tuple[dict[str, Any], ...]) -> None:
    applier = LineApplier(transaction)
    for number, line in enumerate(lines, start=1):
        applier.apply({"seq": number, "epoch": "e", "ts": NOON, **line})
    applier.finish()
    schedule_writes([applier.conversation])


def asks(permission_id: str = "p1", **tool_call: Any) -> dict[str, Any]:
    """Return the journal line of a permission request."""
    options = [
        {"option_id": "allow", "name": "Allow once", "kind": "allow_once"},
        {"option_id": "reject", "name": "Reject", "kind": "reject_once"},
    ]
    call = {"title": "Run the tests", **tool_call}
    return {"kind": "permission.requested", "permission_id": permission_id, "tool_call": call, "options": options}


def path_of(session: TaskSession) -> str:
    """Return the path of the session's page."""
    return f"/tasks/{session.task_id}/sessions/{session.id}/"
