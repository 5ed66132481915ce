"""A person declares a host lost: its sessions end there, nothing is sent again, and they can start elsewhere."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from executors_app.machine.process import identity
from executors_app.models import ExecutorRunning
from sessions_app.hosts import cordons, heartbeats, losses, returns
from sessions_app.hosts.models import Host, HostMaintenance
from sessions_app.kernel.services.errors import HostReporting
from sessions_app.models import Lease, LeaseLost, Prompt, Supervisor, TaskSession, session_transaction
from sessions_app.recovery.services.assessment import execution_of as execution_in_use
from sessions_app.recovery.sweep.candidates import select_executions
from sessions_app.sessions.services.intents import request_resume, request_stop
from sessions_app.sessions.services.status import session_status
from sessions_app.starts import claims
from sessions_app.supervisor.executions import launch_spec_of, load_session
from tests.finish.repositories import mergeable
from tests.hosts.processes import reported
from tests.supervisor.rows import (
    MINE,
    change,
    fresh,
    last_payload,
    make_user,
    names,
    open_orders,
    permission_states,
    prompt_states,
    running_session,
    runs,
)

pytestmark = pytest.mark.django_db

LONG = 600.0


def lost_session(place: str = "p1", **execution: Any) -> TaskSession:
    """Return a session in mid-turn on a host that has been silent for long, with prompts in each state."""
    session = running_session(execution={"host_id": place, "worktree_branch": "kandev/x", **execution})
    session.runs.create(message_id="p1", state="running", has_process=True, started_at=timezone.now())
    for number, state in enumerate(("delivered", "accepted", "sending", "queued"), 1):
        Prompt.objects.create(session=session, message_id=f"p{number}", text="go", state=state)
    session.permissions.create(id=f"of {session.id}", state="pending", requested_at=timezone.now())
    return change(session, state="RUNNING", work_state="working")


def present(session: TaskSession) -> ExecutorRunning:
    execution = execution_in_use(fresh(session))
    assert execution is not None
    return execution


def end_all(name: str = "build-1") -> int:
    return sum(losses.end_lost(lost, is_here=losses.is_work_here(lost)) for lost in losses.load_lost(name))


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("hosts", *arguments, stdout=output)
    return output.getvalue()


def test_host_that_reports_is_not_lost() -> None:
    reported("supervisor", 0)
    with pytest.raises(HostReporting, match="build-1 reports that it is there"):
        losses.declare_lost("build-1", make_user())
    assert not HostMaintenance.objects.exists()


def test_host_whose_supervisor_renews_its_leases_is_not_lost() -> None:
    reported("worker", LONG)
    now = timezone.now()
    Supervisor.objects.create(boot_id="b", host_id="p1", started_at=now, beat_at=now)
    with pytest.raises(HostReporting):
        losses.declare_lost("build-1", None)


def test_host_that_reports_under_another_name_is_not_lost() -> None:
    reported("supervisor", LONG, name="old-name")
    reported("web", 0, name="new-name")
    with pytest.raises(HostReporting):
        losses.declare_lost("old-name", None)


def test_sessions_of_a_silent_host_alone_end_nothing() -> None:
    reported("supervisor", LONG)
    session = lost_session()
    assert losses.count_lost() == 0
    assert losses.load_lost() == []
    assert fresh(session).state == "RUNNING"


def test_lost_session_ends_and_nothing_of_it_is_sent_again() -> None:
    reported("supervisor", LONG)
    session = lost_session()
    losses.declare_lost("build-1", make_user())

    assert end_all() == 1

    row, before = fresh(session), session.executions.order_by("created_at").first()
    assert before is not None
    assert (row.state, row.error_code, row.desired_state) == ("ERROR", "host_lost", "running")
    assert (before.status, before.status_reason, before.host_id) == ("stopped", "host_lost", "p1")
    assert prompt_states(session) == {"p1": "interrupted", "p2": "held", "p3": "held", "p4": "queued"}
    assert list(permission_states(session).values()) == ["expired"]
    assert runs(session) == [("p1", "interrupted")]
    assert open_orders(session) == []
    assert last_payload(session, "session.host_lost") == {
        **last_payload(session, "session.host_lost"),
        "host": "build-1",
        "is_work_here": False,
    }
    assert not select_executions().filter(session=session).exists(), "no sweep starts it"


def test_supervisor_of_a_lost_host_writes_nothing_more() -> None:
    reported("supervisor", LONG)
    session = lost_session()
    held = Lease(MINE.owner, MINE.generation, str(session.agent_execution_id))
    losses.declare_lost("build-1", None)
    end_all()
    with pytest.raises(LeaseLost), session_transaction(session.id, held):
        pass


def test_lost_session_says_where_its_work_is_and_starts_elsewhere_on_request(settings: Any) -> None:
    settings.KANDEV_HOST_NAME = "build-2"
    now = timezone.now()
    Supervisor.objects.create(boot_id="b", host_id="h", started_at=now, beat_at=now, swept_at=now)
    reported("supervisor", LONG)
    session = lost_session(worktree_path="/data/of/build-1")
    losses.declare_lost("build-1", None)
    end_all()

    status = session_status(fresh(session))
    assert "neither its branch nor a snapshot was found on build-2" in status["error_message"]

    request_resume(session.id, make_user())
    intent = session.intents.get(kind="start", done_at=None)
    plan = claims.claim_start(session.id, intent.id, "another", running_launch_id=None)

    assert plan is not None
    assert plan.facts.id == str(present(session).id)
    assert plan.facts.host_id == identity.host_id()
    assert plan.spec.worktree_branch == "kandev/x"
    assert plan.spec.worktree_path.endswith(str(session.id)), "rebuilt here, and never made anew from the base"
    assert not plan.leftovers
    assert fresh(session).error_code == ""


def test_lost_session_that_never_had_a_workspace_starts_with_a_new_one() -> None:
    reported("supervisor", LONG)
    session = lost_session(worktree_branch="")
    losses.declare_lost("build-1", None)
    end_all()
    assert last_payload(session, "session.host_lost")["is_work_here"]
    loaded = load_session(session.id)
    assert launch_spec_of(present(session), loaded).worktree_path == ""


def test_open_stop_is_carried_out_by_another_host_and_open_start_is_dropped() -> None:
    reported("supervisor", LONG)
    stopped, starting = lost_session(), lost_session()
    request_stop(stopped.id, make_user())
    starting.intents.create(kind="start", payload={"mode": "auto"})
    losses.declare_lost("build-1", None)
    end_all()
    assert [kind for kind, _ in open_orders(stopped)] == ["stop"]
    assert open_orders(starting) == []
    assert fresh(stopped).state != "ERROR", "its user wanted it stopped"
    assert present(stopped).agentctl_url == ""


def test_sessions_that_have_ended_and_those_elsewhere_stay_as_they_are() -> None:
    reported("supervisor", LONG)
    over = running_session(execution={"host_id": "p1", "status": "stopped"}, state="COMPLETED")
    elsewhere, remote = lost_session("p2"), lost_session(runtime="remote_docker")
    losses.declare_lost("build-1", None)
    before = [names(session) for session in (over, elsewhere, remote)]
    assert end_all() == 0
    assert [names(session) for session in (over, elsewhere, remote)] == before


def test_crash_between_two_sessions_leaves_the_rest_to_whoever_comes_next() -> None:
    reported("supervisor", LONG)
    sessions = [lost_session() for _ in range(3)]
    losses.declare_lost("build-1", None)
    first, *_ = losses.load_lost()
    assert losses.end_lost(first, is_here=False)
    assert not losses.end_lost(first, is_here=False), "once"
    losses.declare_lost("build-1", None)
    assert losses.count_lost() == 2
    assert end_all() == 2
    for session in sessions:
        assert session.executions.count() == 2
        assert names(session).count("session.host_lost") == 1


def test_lost_host_claims_nothing_before_it_has_ended_what_it_runs(settings: Any) -> None:
    settings.KANDEV_HOST_NAME = "build-1"
    reported("supervisor", LONG)
    HostMaintenance.objects.create(host=cordons.find_hosts("build-1")[0], lost_at=timezone.now())
    execution = running_session(execution={"host_id": identity.host_id()}).executions.get()
    Host.objects.update(machine=heartbeats.own_host_key()[1])
    assert cordons.refusing_host(execution) == "build-1"
    returns.forget_loss()
    assert cordons.refusing_host(execution) == ""
    assert not HostMaintenance.objects.exists()


def test_command_needs_a_confirmation_and_reports_progress() -> None:
    reported("supervisor", LONG)
    lost_session()
    with pytest.raises(CommandError, match="Say --yes") as error:
        run("lost", "build-1")
    assert error.value.returncode == 2
    assert run("lost", "build-1", "--yes").splitlines() == [
        "Sessions ended: 1 of 1",
        "build-1 is lost. Its sessions can be started on other hosts, from their pages.",
        "The work of 1 session was not found on this machine: it is on build-1.",
    ]
    assert json.loads(run("--lost", "build-1", "--yes", "--json")) == {
        "name": "build-1",
        "lost": True,
        "ended": 0,
        "work_not_here": 0,
    }
    assert run().splitlines()[0] == "build-1  0 agents  LOST"


def test_work_is_found_where_the_branch_is(tmp_path: Path) -> None:
    made = mergeable(tmp_path / "team")
    lost = losses.LostExecution(
        uuid.uuid4(), made.session.id, "build-1", str(made.path), str(made.session.id), made.branch
    )
    assert losses.is_work_here(lost)
    assert not losses.is_work_here(replace(lost, branch="kandev/another"))
    assert not losses.is_work_here(replace(lost, repository=str(tmp_path / "nowhere")))
