"""A small deployment: a team with a member, a stranger in another team, staff, and a session."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import Group, User
from django.utils import timezone
from rest_framework.test import APIClient

from executors_app.models import AgentProfile, Executor, ExecutorRunning
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.models import (
    ContinuityReceipt,
    Message,
    MessagePart,
    PermissionRequest,
    Prompt,
    RecoverySweep,
    Repository,
    SweepOutcome,
    SweepRequest,
    Task,
    TaskSession,
    WaitKey,
    session_transaction,
)
from sessions_app.waits.rules.wait_keys import WaitKind
from sessions_app.workflows.models import WorkflowRun
from sessions_app.workflows.services.runs import start_saved_run
from sessions_app.workflows.services.workflows import save_workflow
from tests.raw_events import record_raw_event

SECRET = "s3cr3t-value"
PERMISSION = "permission-1"
OPTIONS = [{"option_id": "allow", "name": "Allow", "kind": "allow_once"}]


@dataclass(frozen=True)
class World:
    """The rows that API tests start from."""

    team: Group
    member: User
    stranger: User
    staff: User
    repository: Repository
    profile: AgentProfile
    executor: Executor
    task: Task
    session: TaskSession
    sweep: RecoverySweep
    sweep_request: SweepRequest

    def url(self, tail: str = "") -> str:
        """Return a URL below the session."""
        return f"/api/v1/tasks/{self.task.id}/sessions/{self.session.id}/{tail}"

    def token(self) -> str:
        """Return the key of the permission that the agent waits for."""
        return WaitKey.objects.get(session=self.session, wait_id=PERMISSION).secret() or ""

    def execution(self) -> ExecutorRunning:
        """Return the session's execution."""
        return ExecutorRunning.objects.get(session=self.session)

    def mark_running(self, url: str = "") -> None:
        """Mark the session as running, without a process."""
        values = {"status": "ready", "agentctl_url": url, "last_seen_at": timezone.now(), "resume_token": SECRET}
        ExecutorRunning.objects.filter(session=self.session).update(**values)
        TaskSession.objects.filter(id=self.session.id).update(launch_id="launch", state="WAITING_FOR_INPUT")


def make_world() -> World:
    """Create the rows in the test's database."""
    team, other = Group.objects.create(name="team"), Group.objects.create(name="other team")
    member, stranger = person("member", team), person("stranger", other)
    staff = person("staff", team, is_staff=True)
    repository = Repository.objects.create(name="repository", team=team, path="/srv/repository")
    profile = AgentProfile.objects.create(
        name="demo",
        agent_type="demo",
        team=team,
        env={"API_KEY": SECRET},
        mcp_servers=[{"name": "tools", "url": SECRET}],
    )
    executor = Executor.objects.create(name="here", runtime="local_standalone")
    task = create_task(member, {"title": "Mend the fence", "team": team, "repository": repository})
    session = create_session(member, task, profile, executor)
    sweep = RecoverySweep.objects.create(boot_id="boot", trigger="boot", started_at=timezone.now(), examined=1)
    SweepOutcome.objects.create(sweep=sweep, session=session, rule="reattach")
    ContinuityReceipt.objects.create(session=session, kind="resumed", verified="pending")
    PermissionRequest.objects.create(
        id=PERMISSION,
        session=session,
        options=OPTIONS,
        tool_call={"title": "Push to main"},
        requested_at=timezone.now(),
    )
    key = WaitKey(session=session, wait_kind=WaitKind.PERMISSION, wait_id=PERMISSION)
    key.seal()
    key.save(force_insert=True)
    sweep_request = SweepRequest.objects.create(by=staff, report={"sessions": [{"session_id": str(session.id)}]})
    return World(team, member, stranger, staff, repository, profile, executor, task, session, sweep, sweep_request)


def person(name: str, team: Group, **more: Any) -> User:
    """Create a user in a team, without a password because hashing one is slow."""
    user = User.objects.create(username=name, **more)
    user.groups.add(team)
    return user


def client_of(user: User | None) -> APIClient:
    """Return a client that is logged in as ``user``."""
    client = APIClient()
    if user is not None:
        client.force_authenticate(user)
    return client


def workflow_run(world: World) -> WorkflowRun:
    """Create a workflow run of the team that needs neither scripts nor agents."""
    text = "{version: 3, metadata: {name: Plain}, nodes: [{id: one, type: trigger}], edges: []}"
    workflow, _ = save_workflow(world.member, {"team": world.team, "name": "Plain", "text": text})
    return start_saved_run(world.member, workflow, {})[0]


def say(session: TaskSession, name: str = "session.workspace.changed", times: int = 1) -> None:
    """Write events into a session's log."""
    with session_transaction(session.id) as transaction:
        for number in range(times):
            record_raw_event(transaction, name, number=number)


def message(session: TaskSession, seq: int, *parts: str) -> Message:
    """Create a message of the agent whose text arrived in ``parts``."""
    row = Message.objects.create(session=session, seq=seq, updated_seq=seq, role="agent", created_at=timezone.now())
    for number, text in enumerate(parts):
        MessagePart.objects.create(message=row, number=number, text=text)
    return row


def prompt(session: TaskSession, state: str, message_id: str = "") -> Prompt:
    """Create a prompt in the given state."""
    return Prompt.objects.create(
        session=session, message_id=message_id or str(uuid.uuid4()), text="Paint it green", state=state
    )
