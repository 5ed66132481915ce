"""A session without an agent is a workspace: it opens, comes back, and no agent is ever started in it."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models import RestrictedError

from executors_app.domain import Observation, Observed, WorkspaceState
from executors_app.models import AgentProfile, Executor
from sessions_app.models import Intent, TaskSession
from sessions_app.services import intents, tasks
from sessions_app.services.errors import Conflict, NoAgent, WorktreeNotShared
from sessions_app.services.status import session_status
from sessions_app.supervisor.executions import launch_spec_of
from sessions_app.supervisor.start import agent_start, claims
from sessions_app.supervisor.sweep.sweep_pass import SweepScope
from tests.supervisor.places import DEAD, AsTold, swept
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


def where(runtime: str = "local_standalone") -> tuple[AgentProfile, Executor]:
    profile, _ = AgentProfile.objects.get_or_create(name="Demo", agent_type="demo")
    executor, _ = Executor.objects.get_or_create(name=runtime, defaults={"runtime": runtime})
    return profile, executor


def workspace(**values: Any) -> TaskSession:
    profile, executor = where()
    task = values.pop("task", None) or make_task()
    return tasks.create_session(make_user(), task, profile, executor, has_agent=False, **values)


def opened(**values: Any) -> TaskSession:
    """A workspace whose start was carried out; its lease is ``MINE``."""
    session = workspace(**values)
    intent = session.intents.get(done_at=None)
    plan = claims.claim_start(session.id, intent.id, MINE.owner, lives=None)
    assert plan is not None
    change(execution_of(session), status="ready", status_reason="", agentctl_url="http://127.0.0.1:9")
    assert agent_start.prepare_agent_start(plan, plan.lease, found="") is None
    return fresh(session)


def test_it_opens_and_rests() -> None:
    session = opened()
    assert (session.state, session.launch_id) == ("WAITING_FOR_INPUT", "")
    assert session.intents.get().outcome == "workspace_only"
    assert session.receipts.get().kind == "workspace_only"
    status = session_status(session)
    assert (status["is_agent_running"], status["needs_resume"], status["resume_reason"]) == (False, False, "running")


def test_it_takes_no_prompt_and_none_with_its_making() -> None:
    session = opened()
    with pytest.raises(NoAgent):
        intents.queue_prompt(session.id, "p1", "write the parser", make_user())
    with pytest.raises(NoAgent):
        workspace(prompt="write the parser")
    assert not session.prompts.exists()
    assert open_orders(session) == []


@pytest.mark.parametrize("mode", ["resume", "fresh_start", "accept_mismatch"])
def test_nobody_can_ask_for_an_agent_in_it(mode: str) -> None:
    session = opened()
    change(execution_of(session), status="stopped")
    with pytest.raises(NoAgent):
        intents.request_resume(session.id, make_user(), mode)


def test_who_resumes_it_gets_the_workspace_and_an_open_one_is_not_opened_again() -> None:
    session = opened()
    intents.request_resume(session.id, make_user())
    assert open_orders(session) == []
    change(execution_of(session), status="stopped")
    intents.request_resume(session.id, make_user())
    assert open_orders(session) == [("start", {"mode": "auto"})]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["auto", "working", "on_open"])
def test_a_dead_one_is_opened_again_unless_by_hand(policy: str, place: AsTold) -> None:
    session = resting(policy=policy)
    place.see(session, DEAD)
    (found,) = swept(SweepScope("boot")).decided
    assert found.decision.rule == "dead_workspace_session"
    assert open_orders(session) == [("start", {"mode": "auto"})]
    assert (fresh(session).state, fresh(session).error_code) == ("WAITING_FOR_INPUT", "")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("values", "rule"), [({"desired_state": "stopped"}, "dead_unwanted"), (GIVEN_UP, "gave_up")])
def test_one_that_is_not_wanted_or_was_started_too_often_stays_closed(
    values: dict[str, Any], rule: str, place: AsTold
) -> None:
    session = change(resting(), **values)
    place.see(session, DEAD)
    assert [one.decision.rule for one in swept(SweepScope("boot")).decided] == [rule]
    assert open_orders(session) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("trigger", ["boot", "reconcile"])
def test_under_manual_a_dead_one_is_left_to_its_user(trigger: Any, place: AsTold) -> None:
    session = resting(policy="manual")
    place.see(session, DEAD)
    swept(SweepScope(trigger))
    assert open_orders(session) == []


@pytest.mark.django_db(transaction=True)
def test_one_whose_worktree_is_gone_says_so(place: AsTold) -> None:
    session = resting()
    place.see(session, Observation(Observed.DEAD, workspace=WorkspaceState.GONE, workspace_reason="It was deleted."))
    swept(SweepScope("boot"))
    assert (fresh(session).state, fresh(session).error_code) == ("ERROR", "worktree_missing")
    assert open_orders(session) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", ["auto", "manual"])
def test_an_open_one_is_taken_over_and_gets_no_agent(policy: str, place: AsTold) -> None:
    session = resting(policy=policy)
    place.see(session, OPEN)
    (found,) = swept(SweepScope("boot", dry_run=True)).decided
    decided = (found.decision.rule, found.decision.agent_action, found.decision.session_move)
    assert decided == ("alive_workspace_session", "none", None)


def resting(**values: Any) -> TaskSession:
    """An open workspace that nobody holds."""
    session = opened(**values)
    change(execution_of(session), owner="", lease_expires_at=None, runtime="as_told")
    return session


def test_it_takes_nobodys_room() -> None:
    _, executor = where()
    change(executor, max_live=1)
    running_session()
    session = workspace()
    intent = session.intents.get(done_at=None)
    assert claims.claim_start(session.id, intent.id, MINE.owner, lives=None) is not None
    Intent.objects.filter(session=session).delete()
    change(execution_of(session), status="ready")
    change(execution_of(TaskSession.objects.exclude(id=session.id).get()), status="stopped")
    another = make_session()
    intent = another.intents.get(done_at=None)
    assert claims.claim_start(another.id, intent.id, MINE.owner, lives=None) is not None


# --- sharing ---


def guest(host: TaskSession, **values: Any) -> TaskSession:
    profile, executor = where(values.pop("runtime", "local_standalone"))
    task = values.pop("task", host.task)
    return tasks.create_session(make_user(), task, profile, executor, shares_worktree_of=host, **values)


def test_a_guest_is_launched_in_its_hosts_worktree() -> None:
    host = opened()
    change(host, worktree_path="/data/worktrees/host", worktree_branch="kandev/host")
    session = guest(fresh(host))
    spec = launch_spec_of(execution_of(session), session)
    assert (spec.session_id, spec.worktree_id) == (str(session.id), str(host.id))
    assert (spec.worktree_path, spec.worktree_branch) == ("/data/worktrees/host", "kandev/host")


def test_a_host_finds_the_worktree_that_its_guest_has_made() -> None:
    host = workspace()
    session = guest(host)
    change(session, worktree_path="/data/worktrees/host", worktree_branch="kandev/host")
    spec = launch_spec_of(execution_of(host), host)
    assert (spec.worktree_id, spec.worktree_path) == ("", "/data/worktrees/host")


def test_a_guest_of_a_guest_works_with_their_host() -> None:
    host = workspace()
    assert guest(guest(host)).shares_worktree_of == host


@pytest.mark.parametrize("runtime", ["remote", "remote_docker", "sprites"])
def test_a_runtime_that_cannot_share_is_refused(runtime: str) -> None:
    profile, executor = where(runtime)
    host = tasks.create_session(make_user(), make_task(), profile, executor, has_agent=False)
    with pytest.raises(WorktreeNotShared, match="cannot share a worktree"):
        guest(host, runtime=runtime)
    assert host.task.sessions.count() == 1


def test_a_worktree_of_another_task_or_place_is_refused() -> None:
    host = workspace()
    with pytest.raises(WorktreeNotShared, match="one task"):
        guest(host, task=make_task())
    with pytest.raises(WorktreeNotShared, match="one executor"):
        guest(host, runtime="local_docker")


def test_a_host_is_not_deleted_before_its_guests_and_goes_with_its_task() -> None:
    host = workspace()
    session = guest(host)
    for one in (host, session):
        Intent.objects.filter(session=one).delete()
    with pytest.raises(Conflict, match="Delete them first"):
        tasks.delete_session(host)
    with pytest.raises(RestrictedError):
        host.delete()
    tasks.delete_session(session)
    tasks.delete_session(host)
    again = workspace()
    guest(again)
    again.task.delete()
    assert not TaskSession.objects.filter(task_id=again.task_id).exists()
