"""Kills a process before and after the commit of one step on a session, and repeats the step as the next one would.

Run in ``manage.py shell``: the steps need a database that outlives the processes, but no agent.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.db import connections
from django.utils import timezone

from executors_app.machine import crash_points
from executors_app.wire.protocol import JournalKind
from sessions_app.finish.execution import carry_out
from sessions_app.hosts.losses import declare_lost, end_lost, load_lost
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import (
    BackgroundWork,
    BudgetHold,
    HostMaintenance,
    RepositoryRemote,
    TaskSession,
    TurnUsage,
    WaitKey,
)
from sessions_app.prompts import services as prompts
from sessions_app.prompts.delivery import claim_next_prompt
from sessions_app.prompts.models import QUEUE_ORDER
from sessions_app.remotes.push_requests import request_push
from sessions_app.sessions.services.intents import request_stop
from sessions_app.turns.agent_turns import end_quiet_turns
from sessions_app.usage import budgets
from sessions_app.usage.rules.budgets import Limits
from sessions_app.waits import services as waits
from sessions_app.waits.expiry import expire_waits
from sessions_app.workflows.models import Workflow, WorkflowRun
from sessions_app.workflows.services.schedules import start_due_runs
from sessions_app.workflows.services.workflows import save_workflow
from tests.finish.intents import give_right
from tests.finish.repositories import Mergeable, mergeable
from tests.hosts.processes import reported
from tests.prompts.test_steering import Working
from tests.repositories.remote_servers import (
    TOKEN,
    USERNAME,
    GitHttpServer,
    GitSshServer,
    add_hook,
    hosted_refs,
    make_hosted,
)
from tests.services import SERVICES
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, execution_of, make_task, make_user, names, running_session
from tests.turns.test_agent_turns import after_a_turn, age, working_alone

SERVERS: Final = list[GitSshServer]()
"""Those that were started."""
TOKEN_LOGIN: Final = {"username": USERNAME, "token": TOKEN}
NOON: Final = datetime(2031, 3, 1, 12, tzinfo=UTC)
HOURLY: Final = (
    "{version: 3, metadata: {name: x}, edges: [],"
    ' nodes: [{id: one, type: trigger, data: {triggerType: cron, cron: "0 * * * *"}}]}'
)


@dataclass(frozen=True)
class Step:
    """A step that can be repeated, and what shows of it in the database."""

    act: Callable[[], Any]
    show: Callable[[], Any]


@dataclass(frozen=True)
class Seen:
    """What the database showed before the step, after the kill in it, and after it was repeated twice."""

    status: int
    before: Any
    killed: Any
    repeated: Any
    again: Any


def show_session(session: TaskSession) -> dict[str, Any]:
    """Return what a step may change in a session, without the ids of new rows."""
    row = TaskSession.objects.get(id=session.id)
    queue = row.prompts.order_by(*QUEUE_ORDER)
    return {
        "states": [row.state, row.work_state, row.last_seq],
        "events": names(session),
        "prompts": [[one.text, one.state, bool(one.steered_into)] for one in queue],
        "turns": [[one.origin, one.state, one.reason] for one in row.runs.order_by("started_at")],
        "keys": [str(one.state(timezone.now())) for one in WaitKey.objects.filter(session=row)],
        "holds": [[one.reason, one.end] for one in BudgetHold.objects.filter(session_id=row.id)],
        "usage": list(
            TurnUsage.objects.filter(session_id=row.id).order_by("ended_at").values_list("tokens", flat=True)
        ),
        "background": [one.processes for one in BackgroundWork.objects.filter(session_id=row.id)],
        "intents": [[one.kind, one.outcome] for one in row.intents.order_by("created_at")],
    }


def on_session(session: TaskSession, act: Callable[..., Any], *args: Any, **options: Any) -> Step:
    """Return the step that calls ``act``."""
    return Step(partial(act, *args, **options), partial(show_session, session))


def two_queued() -> TaskSession:
    """Return a session with two prompts in its queue."""
    session = running_session()
    for message_id in ("p1", "p2"):
        prompts.queue_prompt(session.id, message_id, f"do {message_id}", make_user())
    return session


def edit() -> Step:
    """Edit a queued prompt."""
    session = two_queued()
    return on_session(session, prompts.edit_prompt, session.id, "p1", "do less", make_user(), version=1)


def move() -> Step:
    """Move a queued prompt to the front."""
    session = two_queued()
    return on_session(session, prompts.move_to_position, session.id, "p2", 1, make_user())


def withdraw() -> Step:
    """Withdraw a queued prompt."""
    session = two_queued()
    return on_session(session, prompts.withdraw_prompt, session.id, "p1")


def send_now() -> Step:
    """Mean a queued prompt for the running turn."""
    working = Working()
    working.queue(now=False)
    return on_session(working.session, prompts.send_now, working.session.id, "s1")


def with_first_prompt(state: str) -> TaskSession:
    """Return a session whose first prompt is in this state."""
    session = two_queued()
    session.prompts.filter(message_id="p1").update(state=state)
    return session


def resend() -> Step:
    """Send a held prompt again."""
    session = with_first_prompt("held")
    return on_session(session, prompts.resend_prompt, session.id, "p1", make_user())


def continue_work() -> Step:
    """Let the agent continue an interrupted prompt."""
    session = with_first_prompt("interrupted")
    return on_session(session, prompts.continue_interrupted, session.id, "p1", make_user())


def queue() -> Step:
    """Queue a prompt."""
    session = two_queued()
    return on_session(session, prompts.queue_prompt, session.id, "p3", "do p3", make_user())


def stop() -> Step:
    """Ask for the end of the agent."""
    session = two_queued()
    return on_session(session, request_stop, session.id, make_user())


def waiting(deadline: datetime | None = None) -> tuple[TaskSession, waits.OpenWait]:
    """Return a session that waits for something outside."""
    session = running_session()
    return session, waits.open_wait(session.id, "The build", deadline, make_user())


def answer_wait() -> Step:
    """Answer a wait with its key."""
    session, opened = waiting()
    return on_session(session, waits.resume_wait, opened.resume_token, "It has passed.", "build-1")


def end_wait() -> Step:
    """End a wait."""
    session, opened = waiting()
    return on_session(session, waits.end_wait, session.id, opened.wait_id)


def expire_wait() -> Step:
    """Let a wait expire."""
    session, _ = waiting(timezone.now() + timedelta(hours=1))
    WaitKey.objects.filter(session=session).update(expires_at=timezone.now() - timedelta(hours=1))
    return on_session(session, expire_waits)


def begin_own_turn() -> Step:
    """Read a line of an agent that works without a prompt."""
    session, journal = after_a_turn()
    return on_session(session, ingest, session, journal.says("working on"))


def end_own_turn() -> Step:
    """Read the line with which an agent ends the turn that it began."""
    session, journal, _ = working_alone()
    prompts.queue_prompt(session.id, "p2", "next", make_user())
    line = journal.line(JournalKind.AGENT_TURN_ENDED, stop_reason="end_turn")
    return on_session(session, ingest, session, [line])


def end_quiet_turn() -> Step:
    """End the turn of an agent that has fallen silent."""
    session, _, _ = working_alone()
    age(session, 3600)
    return on_session(session, end_quiet_turns, {session.id: MINE})


def report_processes() -> Step:
    """Read a report of processes that a turn has left running."""
    session, journal = after_a_turn()
    process = {"command": "npm run dev", "since": "2026-01-31T12:00:00+00:00", "cpu_seconds": 1.5}
    line = journal.line(JournalKind.AGENT_PROCESSES, processes=[process], count=1)
    return on_session(session, ingest, session, [line])


def end_turn() -> Step:
    """Read the end of a turn."""
    session, journal = running_session(), Journal()
    prompts.queue_prompt(session.id, "p1", "do it", make_user())
    claim_next_prompt(session.id, MINE, journal.epoch, frozenset())
    ingest(session, [*journal.turn_begins("p1"), journal.line(JournalKind.USAGE, used=100, size=1000)])
    return on_session(session, ingest, session, [journal.completes("p1")])


def claim(session: TaskSession) -> Step:
    """Claim the next prompt of a session."""
    return on_session(session, claim_next_prompt, session.id, MINE, "epoch-1", frozenset())


def begin_hold() -> Step:
    """Hold a prompt back because of a budget."""
    session = two_queued()
    budgets.set_session_budget(session.id, Limits(tokens=0), make_user())
    return claim(session)


def end_hold() -> Step:
    """End a hold because the budget was raised."""
    session = two_queued()
    budgets.set_session_budget(session.id, Limits(tokens=0), make_user())
    claim(session).act()
    budgets.set_session_budget(session.id, Limits(tokens=1000), make_user())
    return on_session(session, budgets.update_holds)


def start_scheduled_run() -> Step:
    """Start the run of a schedule."""
    given = {"team": make_task().team, "name": str(uuid.uuid4()), "text": HOURLY, "triggers_enabled": True}
    workflow, _ = save_workflow(make_user(), given)
    Workflow.objects.filter(id=workflow.id).update(next_run_at=NOON)

    def show() -> Any:
        runs = WorkflowRun.objects.filter(workflow=workflow).values_list("trigger", "state")
        next_run_at = Workflow.objects.get(id=workflow.id).next_run_at
        return [[list(run) for run in runs], str(next_run_at)]

    return Step(partial(start_due_runs, NOON + timedelta(seconds=1)), show)


def show_merge(merged: Mergeable) -> Any:
    """Return the session, its merges, and the commits of its base."""
    session = TaskSession.objects.get(id=merged.session.id)
    states = [[str(one.kind), str(one.state), bool(one.result_commit)] for one in session.finish_intents.all()]
    return [show_session(session), states, merged.subjects()]


def request_merge() -> Step:
    """Request a merge."""
    merged = mergeable(Path(tempfile.mkdtemp()) / "team")
    return Step(merged.request, partial(show_merge, merged))


def merge() -> Step:
    """Carry a merge out, in a real repository."""
    merged = mergeable(Path(tempfile.mkdtemp()) / "team")
    return Step(partial(carry_out, merged.request().id), partial(show_merge, merged))


def push() -> Step:
    """Carry a push out, to a real server that starts CI with every push."""
    return _push(lambda hosted: {"address": GitHttpServer(hosted.parent).address(hosted.name).text, **TOKEN_LOGIN})


def push_over_ssh() -> Step:
    """Do the same over ssh."""
    return _push(_served_by_ssh)


def _served_by_ssh(hosted: Path) -> dict[str, str]:
    server = GitSshServer(hosted.parent / "sshd")
    SERVERS.append(server)
    keys = "\n".join(str(key) for key in server.host_keys())
    login = {"private_key": server.key.read_text(), "public_key": "its public key", "host_keys": keys}
    return {"address": server.address(hosted).text, **login}


def _push(serve: Callable[[Path], dict[str, str]]) -> Step:
    place = Path(tempfile.mkdtemp())
    made = mergeable(place / "team", right=False)
    give_right(made.session, "push_branches")
    hosted = make_hosted(place / "project.git")
    add_hook(hosted, "post-receive", "echo run >> ci.log")
    repository = made.session.task.repository
    assert repository is not None
    RepositoryRemote.objects.create(repository=repository, **serve(hosted))
    commit = made.at(made.branch)
    intent = request_push(made.session, make_user(), commit=commit)
    return Step(partial(carry_out, intent.id), partial(show_push, made, hosted, commit))


def show_push(made: Mergeable, hosted: Path, commit: str) -> Any:
    """Return the session, its pushes, whether the server has the commit, and how often CI was started."""
    started = hosted / "ci.log"
    runs = started.read_text().splitlines() if started.exists() else []
    return [*show_merge(made)[:2], list(hosted_refs(hosted).values()) == [commit], runs]


def lose_host() -> Step:
    """Declare a host lost, and end its session, which is in mid-turn."""
    session = with_first_prompt("delivered")
    name = session.id.hex
    change(execution_of(session), host_id=name, worktree_branch="kandev/x")
    session.runs.create(message_id="p1", state="running", has_process=True, started_at=timezone.now())
    reported("supervisor", 600, name=name, place=name)

    def act() -> None:
        declare_lost(name, None)
        for lost in load_lost(name):
            end_lost(lost, is_here=False)

    return Step(act, partial(show_loss, session))


def show_loss(session: TaskSession) -> Any:
    """Return the session, its executions, and whether the host is lost."""
    rows = session.executions.order_by("created_at").values_list("status", "status_reason", "generation", "host_id")
    is_lost = HostMaintenance.objects.filter(host__name=session.id.hex).exists()
    return [show_session(session), [[*row, bool(host)] for *row, host in rows], is_lost]


PROMPT: Final = ("request.prompt_written", "request.prompt_committed")
ORDER: Final = ("request.order_written", "request.order_committed")
QUEUE: Final = ("queue.change_written", "queue.change_committed")
WAIT: Final = ("wait.change_written", "wait.change_committed")
OWN_TURN_END: Final = ("own_turn.ended", "own_turn.end_committed")
HOLD: Final = ("budget.hold_written", "budget.hold_committed")
FINISH: Final = ("finish.prepared", "finish.planned", "finish.applied", "finish.end_written", "finish.end_committed")
POINTS: Final[dict[Callable[[], Step], tuple[str, ...]]] = {
    **dict.fromkeys((queue, resend, continue_work), PROMPT),
    stop: ORDER,
    **dict.fromkeys((edit, move, withdraw, send_now), QUEUE),
    **dict.fromkeys((answer_wait, end_wait, expire_wait), WAIT),
    begin_own_turn: ("own_turn.begun",),
    **dict.fromkeys((end_own_turn, end_quiet_turn), OWN_TURN_END),
    report_processes: ("background.reported",),
    end_turn: ("usage.turn_counted",),
    **dict.fromkeys((begin_hold, end_hold), HOLD),
    request_merge: ("finish_request.written", "finish_request.committed"),
    **dict.fromkeys((push, push_over_ssh, merge), FINISH),
    lose_host: ("lost.declared", "lost.unwritten", "lost.ended"),
    start_scheduled_run: ("schedule.run_written", "schedule.slot_moved", "schedule.run_committed"),
}
"""The crash points of each step, in their order."""
CASES: Final = {f"{step.__name__} {point}": (step, point) for step, points in POINTS.items() for point in points}


def kill(step: Step, point: str) -> int:
    """Carry a step out in a process that dies at ``point``; return its exit status."""
    connections.close_all()  # a connection does not survive a fork
    child = os.fork()
    if not child:
        with tempfile.TemporaryDirectory() as reached:
            crash_points.arm(point, Path(reached))
            step.act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def repeat(step: Step) -> Any:
    """Carry a step out once more; a refusal says that it is over."""
    with suppress(SessionsError):
        step.act()
    return step.show()


def run_all(prefix: str = "") -> dict[str, dict[str, Any]]:
    """Kill at every point of every step whose name begins so; return what the database showed."""
    seen = {}
    try:
        for name, (prepare, point) in CASES.items():
            if not name.startswith(prefix) or (prepare is push_over_ssh and SERVICES["git over ssh"]()):
                continue
            step = prepare()
            before = step.show()
            status = kill(step, point)
            killed = step.show()
            seen[name] = asdict(Seen(status, before, killed, repeat(step), repeat(step)))
    finally:
        for server in SERVERS:
            server.close()
    return seen
