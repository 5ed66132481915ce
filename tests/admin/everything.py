"""At least one row of every model in the admin, with a secret wherever one can be stored."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone
from django_q.models import OrmQ, Schedule
from django_q.models import Task as QueueTask
from django_q.signing import SignedPackage

from executors_app.models import AgentCapability, AgentProfile, Executor, ExecutorRunning, SecretKeyCheck
from sessions_app.accounts.models import ApiToken, AttemptCount, LoginLink, Preferences, TeamRole
from sessions_app.board.services.tasks import create_session
from sessions_app.models import (
    AgentSettings,
    AgentTestResult,
    Attachment,
    AttentionItem,
    AttentionMark,
    BackgroundWork,
    Backup,
    BudgetHold,
    Chore,
    ContinuityReceipt,
    DataSize,
    FinishIntent,
    Host,
    HostMaintenance,
    HostProcess,
    Intent,
    Leftover,
    McpServerList,
    Message,
    MessagePart,
    MetricCount,
    Orphaned,
    PermissionRequest,
    PreparedHistory,
    Presence,
    Prompt,
    RecoverySweep,
    RemovedWorktree,
    RenderedText,
    ReportedAgent,
    Repository,
    RepositoryRemote,
    RepositorySighting,
    ReviewComment,
    SearchCursor,
    SearchDocument,
    SessionMark,
    Supervisor,
    Suspension,
    SweepOutcome,
    SweepRequest,
    Task,
    TaskLabel,
    TaskPlan,
    TaskSession,
    TeamPolicy,
    Turn,
    TurnUsage,
    UsageBudget,
    ViewedVersion,
    session_transaction,
)
from sessions_app.notifications.models import (
    DeliveredItem,
    Delivery,
    NotificationSettings,
    PushDevice,
    PushKey,
    Webhook,
)
from sessions_app.waits.models import mint_wait_key
from sessions_app.waits.rules.wait_keys import WaitKind
from sessions_app.workflows.models import NodeRun, Workflow, WorkflowRun
from tests.raw_events import record_raw_event

SECRET: Final = "s3cr3t-value"
"""Stored in every secret field, except for API tokens and login links, which are generated."""


def make_set(name: str) -> TaskSession:
    """Create a new session and one row of every related model; return the session."""
    team = Group.objects.create(name=f"team {name}")
    user = User.objects.create(username=f"user-{name}")
    user.groups.add(team)
    TeamRole.objects.create(user=user, team=team, role=TeamRole.Role.VIEWER)
    ApiToken.mint(user, name, ApiToken.Scope.READ, None)
    Preferences.objects.create(user=user)
    LoginLink.mint(user)
    repository = Repository.objects.create(name=name, team=team, path=f"/srv/{name}")
    profile = AgentProfile.objects.create(
        name=name, agent_type="demo", team=team, env={"API_KEY": SECRET}, mcp_servers=[{"name": "tools", "key": SECRET}]
    )
    RepositoryRemote.objects.create(
        repository=repository, address="https://example.org/project.git", private_key=SECRET, token=SECRET
    )
    executor = Executor.objects.create(name=name, runtime="local_standalone")
    AgentCapability.objects.create(
        team=team,
        profile=profile,
        executor=executor,
        agent_type="demo",
        agent_version=name,
        capability="load_session",
        claimed=True,
        last_seen_at=timezone.now(),
    )
    task = Task.objects.create(title=f"Task {name}", team=team, repository=repository, created_by=user)
    session = create_session(user, task, profile, executor, prompt="Begin")
    tokens = dict.fromkeys(("auth_token", "resume_token", "rejected_resume_token"), SECRET)
    ExecutorRunning.objects.filter(session=session).update(status="ready", state={"process": SECRET}, **tokens)
    _make_record(session, user, name)
    _make_attention(session, user, name)
    _make_workflow(session, user, name)
    _make_queue(name)
    _make_maintenance(name)
    return session


def _make_record(session: TaskSession, user: User, name: str) -> None:
    now = timezone.now()
    with session_transaction(session.id) as transaction:
        record_raw_event(transaction, "session.workspace.changed")
    message = Message.objects.create(session=session, seq=1, updated_seq=1, role="agent", created_at=now)
    MessagePart.objects.create(message=message, number=0, text="Hello")
    run = Turn.objects.create(session=session, message_id="m", started_at=now)
    PermissionRequest.objects.create(id=f"permission-{name}", session=session, run=run, requested_at=now)
    with session_transaction(session.id) as transaction:
        mint_wait_key(transaction, run, WaitKind.PERMISSION, f"permission-{name}", by=user)
    AgentSettings.objects.create(session=session, title="Fences", settings_at=now)
    ReportedAgent.objects.create(
        team=session.task.team, executor=session.executor, agent_type="demo", version=name, seen_at=now
    )
    AgentTestResult.objects.create(
        team=session.task.team,
        executor=session.executor,
        profile=session.agent_profile,
        agent_type=f"type-{name}",
        state="passed",
        started_at=now,
    )
    BackgroundWork.objects.create(session=session, processes=[{"command": "npm run dev"}], count=1, reported_at=now)
    ReviewComment.objects.create(
        session=session, author=user, author_name=user.username, path="a.py", first_line=1, last_line=1, text="Why?"
    )
    ViewedVersion.objects.create(session=session, user=user, version="0" * 40)
    Suspension.objects.create(session=session, run=run, reason="usage_limit", message="You have hit your limit.")
    TaskPlan.objects.create(task=session.task, assignee=user, priority=2)
    TaskLabel.objects.create(task=session.task, name=f"label {name}", key=f"label {name}")
    FinishIntent.objects.create(
        session=session,
        kind="merge",
        strategy="squash",
        branch_ref="refs/heads/kandev/1",
        branch_commit="a" * 40,
        target_ref="refs/heads/main",
        expected_commit="b" * 40,
        by=user,
    )
    of_turn = {"turn_id": run.id, "team": session.task.team, "task_id": session.task_id, "session_id": session.id}
    UsageBudget.objects.create(session=session, tokens=1000, updated_by=user)
    BudgetHold.objects.create(session=session, scope="session", reason="used_up", limit="5 tokens", used="6 tokens")
    TurnUsage.objects.create(**of_turn, member=user, agent_type="demo", ended_at=now, day=now.date(), tokens=12)
    ContinuityReceipt.objects.create(session=session, kind="resumed", launch_id=uuid.uuid4().hex)
    sweep = RecoverySweep.objects.create(boot_id="boot", trigger="boot", started_at=now, outcomes={"resumed": 1})
    SweepOutcome.objects.create(sweep=sweep, session=session, rule="reattach")
    SweepRequest.objects.create(by=user, sweep=sweep, done_at=now, report={"sessions": []})
    Supervisor.objects.create(boot_id=f"boot {name}", host_id="host", started_at=now, beat_at=now)
    SecretKeyCheck.objects.get_or_create(id=1)
    host = Host.objects.create(name=f"host {name}", first_seen_at=now)
    HostProcess.objects.create(host=host, place="p", role="web", release="1", started_at=now, beat_at=now)
    HostMaintenance.objects.create(host=host, cordoned_at=now, by=user)
    RepositorySighting.objects.create(
        repository=Repository.objects.get(name=name), host=host, is_present=True, changed_at=now
    )
    PreparedHistory.objects.create(session=session, version="1", text="[USER]: Hello", facts={"estimated_tokens": 4})
    RenderedText.objects.create(session=session, key="0" * 64, result="{}", size=2)
    SearchCursor.objects.create(session=session, seq=1, indexed_at=now)
    SearchDocument.objects.create(kind="task", task=session.task, at=now, task_version=now, text="Fences")
    Attachment.objects.create(session=session, sha256="0" * 64, media_type="text/plain", content=b"Hello")
    assert Prompt.objects.filter(session=session).exists()
    assert Intent.objects.filter(session=session).exists()


def _make_workflow(session: TaskSession, user: User, name: str) -> None:
    team = session.task.team
    workflow = Workflow.objects.create(team=team, name=name, text="x", created_by=user)
    run = WorkflowRun.objects.create(
        team=team, workflow=workflow, name=name, text="x", task=session.task, executor=session.executor
    )
    NodeRun.objects.create(run=run, position=0, path="one", node="one", kind="agent", session=session)


def _make_attention(session: TaskSession, user: User, name: str) -> None:
    now = timezone.now()
    item = AttentionItem.objects.create(
        key=f"error:{name}", kind="error", session=session, task_id=session.task_id, what="It stopped"
    )
    AttentionMark.objects.create(item=item, user=user, acknowledged_at=now)
    Presence.objects.create(session=session, user=user, expires_at=now)
    SessionMark.objects.create(session=session, user=user, pinned_at=now)
    NotificationSettings.objects.create(user=user, email=True, last_email_at=now)
    hook = Webhook.objects.create(user=user, url=f"https://hooks.example/{name}", secret=SECRET)
    key = PushKey.objects.create(public_key=f"public {name}", private_key=SECRET)
    values = {"endpoint": SECRET, "auth": SECRET, "sign_in": SECRET, "endpoint_digest": name, "signed_with": key}
    PushDevice.objects.create(user=user, name=f"Browser {name}", service="push.example", **values)
    delivery = Delivery.objects.create(channel="webhook", webhook=hook, payload={"type": "ping"})
    DeliveredItem.objects.create(delivery=delivery, item=item, target=f"webhook:{hook.id}")
    McpServerList.objects.create(team_id=session.task.team_id, servers=[], updated_by=user)
    TeamPolicy.objects.create(team_id=session.task.team_id, policy="working", updated_by=user)


def _make_maintenance(name: str) -> None:
    now = timezone.now()
    Chore.objects.create(name=f"chore {name}", started_at=now, ended_at=now, said=["something was kept"])
    Leftover.objects.create(session_id=uuid.uuid4(), repository_path=f"/srv/{name}")
    removed = {"host": f"host {name}", "path": "/w", "repository_path": "/r", "head": "a" * 40}
    RemovedWorktree.objects.create(session_id=uuid.uuid4(), **removed)
    DataSize.objects.create(host=f"host {name}", what="journals", bytes=4096)
    Backup.objects.create(host=f"host {name}", began_at=timezone.now(), place="/backup")
    Orphaned.objects.create(runtime="local_docker", name=f"kandev-{name}", status="running")
    AttemptCount.objects.create(key=f"{name:0>64}", tries=3, ends_at=now + timedelta(minutes=5))
    MetricCount.objects.create(name="kandev_sweep_duration_seconds_sum", part=name, value=1.5)


def _make_queue(name: str) -> None:
    now = timezone.now()
    times: dict[str, Any] = {"func": "math.sqrt", "started": now, "stopped": now}
    QueueTask.objects.create(id=uuid.uuid4().hex, name=f"done {name}", success=True, **times)
    QueueTask.objects.create(id=uuid.uuid4().hex, name=f"failed {name}", success=False, **times)
    Schedule.objects.create(name=name, func="math.sqrt", task=QueueTask.objects.filter(name=f"done {name}")[0].id)
    package: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "name": name,
        "func": "math.sqrt",
        "args": (),
        "kwargs": {},
        "group": None,
    }
    OrmQ.objects.create(key="kandev", payload=SignedPackage.dumps(package))


def browser(user: User) -> Client:
    """Return the browser session of ``user``."""
    client = Client()
    client.force_login(user)
    return client


def staff() -> User:
    """Return a staff user who is in no team."""
    return User.objects.create(username="staff", is_staff=True)


def superuser() -> User:
    """Return a superuser."""
    return User.objects.create(username="root", is_staff=True, is_superuser=True)
