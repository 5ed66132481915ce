"""A session without an agent is a workspace: it opens and recovers, and no agent is ever started in it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import RestrictedError

from executors_app.models import AgentProfile, Executor
from executors_app.wire.executions import Observation, Observed, WorkspaceState
from sessions_app.board.services import tasks
from sessions_app.kernel.services.errors import Conflict, NoAgent, WorktreeNotShared
from sessions_app.models import Intent, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.recovery.sweep.sweep_pass import SweepScope
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import agent_start, claims
from sessions_app.supervisor.executions import launch_spec_of
from tests.supervisor.recording_runtime import DEAD, RecordingRuntime, sweep_once
from tests.supervisor.rows import (
    MINE,
    change,
    execution_of,
    fresh,
    make_session,
    make_task,
    make_user,
    open_orders,
    running_session,
)

pytestmark = pytest.mark.django_db
GIVEN_UP = {"start_attempts": 5}
OPEN = Observation(
    Observed.ALIVE,
    report={
        "agent": {"state": "none", "active_turn": None, "launch_id": ""},
        "journal": {"last_seq": 0},
        "pending_permissions": [],
    },
)


def profile_and_executor(runtime: str = "local_standalone") -> tuple[AgentProfile, Executor]:
    profile, _ = AgentProfile.objects.get_or_create(name="Demo", agent_type="demo")
    executor, _ = Executor.objects.get_or_create(name=runtime, defaults={"runtime": runtime})
    return profile, executor


def workspace(**values: Any) -> TaskSession:
    profile, executor = profile_and_executor()
    task = values.pop("task", None) or make_task()
    return tasks.create_session(make_user(), task, profile, executor, has_agent=False, **values)


def open_workspace(**values: Any) -> TaskSession:
    """Return a workspace whose start was carried out; its lease is ``MINE``."""
    session = workspace(**values)
    intent = session.intents.get(done_at=None)
    plan = claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id=None)
    assert plan is not None
    change(execution_of(session), status="ready", status_reason="", agentctl_url="unix:/nowhere/agentctl")
    assert agent_start.prepare_agent_start(plan, plan.lease, found="") is None
    return fresh(session)


def test_workspace_opens_and_is_idle() -> None:
    session = open_workspace()
    assert (session.state, session.launch_id) == ("WAITING_FOR_INPUT", "")
    assert session.intents.get().outcome == "workspace_only"
    assert session.receipts.get().kind == "workspace_only"
    status = session_status(session)
    assert (status["is_agent_running"], status["needs_resume"], status["resume_reason"]) == (False, False, "running")


def test_workspace_takes_no_prompt() -> None:
    session = open_workspace()
    with pytest.raises(NoAgent):
        prompts.queue_prompt(session.id, "p1", "write the parser", make_user())
    with pytest.raises(NoAgent):
        workspace(prompt="write the parser")
    assert not session.prompts.exists()
    assert open_orders(session) == []


@pytest.mark.parametrize("mode", ["resume", "fresh_start", "accept_mismatch"])
def test_agent_cannot_be_requested_in_a_workspace(mode: str) -> None:
    session = open_workspace()
    change(execution_of(session), status="stopped")
    with pytest.raises(NoAgent):
        intents.request_resume(session.id, make_user(), mode)


def test_resuming_opens_a_closed_workspace_and_leaves_an_open_one() -> None:
    session = open_workspace()
    intents.request_resume(session.id, make_user())
    assert open_orders(session) == []
    change(execution_of(session), status="stopped")
    intents.request_resume(session.id, make_user())
    assert open_orders(session) == [("start", {"mode": "auto"})]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["auto", "working", "on_open"])
def test_dead_workspace_is_reopened_unless_the_policy_is_manual(policy: str, runtime: RecordingRuntime) -> None:
    session = unleased_workspace(policy=policy)
    runtime.set_observation(session, DEAD)
    (found,) = sweep_once(SweepScope("boot")).decided
    assert found.decision.rule == "dead_workspace_session"
    assert open_orders(session) == [("start", {"mode": "auto"})]
    assert (fresh(session).state, fresh(session).error_code) == ("WAITING_FOR_INPUT", "")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("values", "rule"), [({"desired_state": "stopped"}, "dead_unwanted"), (GIVEN_UP, "gave_up")])
def test_unwanted_or_given_up_workspace_stays_closed(
    values: dict[str, Any], rule: str, runtime: RecordingRuntime
) -> None:
    session = change(unleased_workspace(), **values)
    runtime.set_observation(session, DEAD)
    assert [one.decision.rule for one in sweep_once(SweepScope("boot")).decided] == [rule]
    assert open_orders(session) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("trigger", ["boot", "reconcile"])
def test_dead_workspace_under_manual_is_left_to_its_user(trigger: Any, runtime: RecordingRuntime) -> None:
    session = unleased_workspace(policy="manual")
    runtime.set_observation(session, DEAD)
    sweep_once(SweepScope(trigger))
    assert open_orders(session) == []


@pytest.mark.django_db(transaction=True)
def test_workspace_with_a_missing_worktree_reports_it(runtime: RecordingRuntime) -> None:
    session = unleased_workspace()
    runtime.set_observation(
        session, Observation(Observed.DEAD, workspace=WorkspaceState.GONE, workspace_reason="It was deleted.")
    )
    sweep_once(SweepScope("boot"))
    assert (fresh(session).state, fresh(session).error_code) == ("ERROR", "worktree_missing")
    assert open_orders(session) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["auto", "manual"])
def test_open_workspace_is_taken_over_without_an_agent(policy: str, runtime: RecordingRuntime) -> None:
    session = unleased_workspace(policy=policy)
    runtime.set_observation(session, OPEN)
    (found,) = sweep_once(SweepScope("boot", dry_run=True)).decided
    decided = (found.decision.rule, found.decision.agent_action, found.decision.session_move)
    assert decided == ("alive_workspace_session", "none", None)


def unleased_workspace(**values: Any) -> TaskSession:
    """Return an open workspace without a lease."""
    session = open_workspace(**values)
    change(execution_of(session), owner="", lease_expires_at=None, runtime="recording")
    return session


def test_workspace_does_not_use_capacity() -> None:
    _, executor = profile_and_executor()
    change(executor, max_live=1)
    running_session()
    session = workspace()
    intent = session.intents.get(done_at=None)
    assert claims.claim_start(session.id, intent.id, MINE.owner, running_launch_id=None) is not None
    Intent.objects.filter(session=session).delete()
    change(execution_of(session), status="ready")
    change(execution_of(TaskSession.objects.exclude(id=session.id).get()), status="stopped")
    another = make_session()
    intent = another.intents.get(done_at=None)
    assert claims.claim_start(another.id, intent.id, MINE.owner, running_launch_id=None) is not None


# --- sharing ---


def guest_session(host: TaskSession, **values: Any) -> TaskSession:
    profile, executor = profile_and_executor(values.pop("runtime", "local_standalone"))
    task = values.pop("task", host.task)
    return tasks.create_session(make_user(), task, profile, executor, shares_worktree_of=host, **values)


def test_guest_is_launched_in_its_hosts_worktree() -> None:
    host = open_workspace()
    change(host, worktree_path="/data/worktrees/host", worktree_branch="kandev/host")
    session = guest_session(fresh(host))
    spec = launch_spec_of(execution_of(session), session)
    assert (spec.session_id, spec.worktree_id) == (str(session.id), str(host.id))
    assert (spec.worktree_path, spec.worktree_branch) == ("/data/worktrees/host", "kandev/host")


def test_host_uses_the_worktree_that_its_guest_created() -> None:
    host = workspace()
    session = guest_session(host)
    change(session, worktree_path="/data/worktrees/host", worktree_branch="kandev/host")
    spec = launch_spec_of(execution_of(host), host)
    assert (spec.worktree_id, spec.worktree_path) == ("", "/data/worktrees/host")


def test_guest_of_a_guest_shares_the_same_host() -> None:
    host = workspace()
    assert guest_session(guest_session(host)).shares_worktree_of == host


@pytest.mark.parametrize("runtime", ["remote", "remote_docker", "sprites"])
def test_runtime_that_cannot_share_worktrees_is_refused(runtime: str) -> None:
    profile, executor = profile_and_executor(runtime)
    host = tasks.create_session(make_user(), make_task(), profile, executor, has_agent=False)
    with pytest.raises(WorktreeNotShared, match="cannot share a worktree"):
        guest_session(host, runtime=runtime)
    assert host.task.sessions.count() == 1


def test_worktree_of_another_task_or_executor_is_refused() -> None:
    host = workspace()
    with pytest.raises(WorktreeNotShared, match="the same task and executor"):
        guest_session(host, task=make_task())
    with pytest.raises(WorktreeNotShared, match="the same task and executor"):
        guest_session(host, runtime="local_docker")


def test_host_is_deleted_only_after_its_guests_or_with_its_task() -> None:
    host = workspace()
    session = guest_session(host)
    for one in (host, session):
        Intent.objects.filter(session=one).delete()
    with pytest.raises(Conflict, match="Delete them first"):
        tasks.delete_session(host)
    with pytest.raises(RestrictedError):
        host.delete()
    tasks.delete_session(session)
    tasks.delete_session(host)
    again = workspace()
    guest_session(again)
    again.task.delete()
    assert not TaskSession.objects.filter(task_id=again.task_id).exists()
