"""The kill-point matrix: every crash point, in every process that has it, with every behaviour of the agent."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Final

from tests.chaos import session_steps
from tests.chaos.agent_records import events_of
from tests.chaos.behaviours import Behaviour, args_for, why_unreachable
from tests.chaos.control_plane import crash_environment
from tests.chaos.deployment import ChaosDeployment, ChaosSession, dashed
from tests.chaos.invariants import describe, orphans, violations
from tests.waiting import WaitTimeout, eventually

CONCURRENCY: Final = 6
"""Number of concurrent sessions."""
TERM_INTERVAL: Final = 3.0
"""Seconds between two SIGTERMs to a supervisor that is to die in its shutdown."""
MAX_COMMAND_RUNS: Final = 60
RETRIES: Final = 3
"""How often an unreached point is retried: of two simultaneous deaths, the first prevents the second."""
ROLLED_BACK: Final = "rolled back"


@dataclass
class Outcome:
    """The results of one or more runs."""

    reached: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often a point was reached, by (point, process, behaviour)."""
    deaths: Counter[str] = field(default_factory=Counter)
    """How often a process died, by point."""
    violations: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    sessions: int = 0

    def add(self, other: Outcome) -> None:
        """Merge another outcome into this one."""
        self.reached += other.reached
        self.deaths += other.deaths
        self.violations += other.violations
        self.logs += other.logs
        self.sessions += other.sessions


@dataclass(frozen=True)
class Group:
    """Cells that share a deployment: these points, killed as ``mode`` says, with these behaviours."""

    points: Sequence[str]
    behaviours: Sequence[Behaviour]
    mode: str = ":each"
    """``:each`` kills once for each session, the empty text once in total."""
    process: str = "supervisor"
    """The process that sweeps: the supervisor, or the command ``recover_sessions``."""

    @property
    def spec(self) -> str:
        """Return the value of ``KANDEV_CRASH_AT``."""
        return ",".join(f"{point}{self.mode}" for point in self.points)

    @property
    def kills_web(self) -> bool:
        """Return whether the web is the process that dies."""
        return any(point.startswith("request.") for point in self.points)

    def __str__(self) -> str:
        names = ", ".join(one.name for one in self.behaviours)
        return f"{', '.join(self.points)} in {self.process} with {names}"

    def unreached(self, outcome: Outcome) -> list[Group]:
        """Return the points that were not reached although they must be; with ``:each``, every single cell."""
        missing = []
        for point in self.points:
            able = [one for one in self.behaviours if not why_unreachable(point, one)]
            unreached = [one for one in able if not outcome.reached[point, self.process, one.name]]
            if unreached and (self.mode or unreached == able):
                missing.append(replace(self, points=[point], behaviours=unreached))
        return missing


def run_group(deployment: ChaosDeployment, group: Group) -> Outcome:
    """Run a group; retry each point that was not reached because of another death in a group of its own."""
    outcome = run_group_once(deployment, group)
    for _ in range(RETRIES):
        if outcome.violations:
            break
        for unreached in group.unreached(outcome):
            outcome.add(run_group_once(deployment, unreached))
    return outcome


def run_group_once(deployment: ChaosDeployment, group: Group) -> Outcome:
    """Run a group in a prepared deployment while its processes die, then check every session."""
    directory = Path(tempfile.mkdtemp(prefix="reached-", dir=deployment.home))
    try:
        if group.process == "recover_sessions":
            return _run_with_command(deployment, group, directory)
        return _run_with_supervisor(deployment, group, directory)
    finally:
        deployment.control_plane.kill_all()


def _run_with_supervisor(deployment: ChaosDeployment, group: Group, directory: Path) -> Outcome:
    environment = crash_environment(group.spec, directory)
    creates_first = bool(group.mode) and group.kills_web
    deployment.control_plane.start({"web": {} if creates_first else environment, "supervisor": environment})
    deployment.control_plane.wait_until_ready()
    problems: list[str] = []

    def create(behaviour: Behaviour) -> ChaosSession:
        return deployment.create_session(behaviour, session_steps.FIRST_PROMPT, args_for(group.points, behaviour))

    def run_steps(behaviour: Behaviour, created: ChaosSession | None) -> None:
        try:
            session = created or create(behaviour)
            for step in session_steps.steps_for(group.points, behaviour):
                step(session)
        except WaitTimeout as error:
            problems.append(f"stuck: {error}")

    with _repeated_sigterms(deployment, group, directory), ThreadPoolExecutor(CONCURRENCY) as pool:
        created: Iterable[ChaosSession | None] = repeat(None)
        if creates_first:  # a session whose creation crashes is a new one on the next try, and would crash again
            created = list(pool.map(create, group.behaviours))
            deployment.control_plane.restart_with("web", environment)
        list(pool.map(run_steps, group.behaviours, created))
    return check_sessions(deployment, directory, group.process, problems)


@contextmanager
def _repeated_sigterms(deployment: ChaosDeployment, group: Group, directory: Path) -> Iterator[None]:
    """Send SIGTERM to the supervisor from time to time until it has died during its shutdown.

    Only to one whose first pass is over: one that is slow to start would otherwise never do any work.
    """
    stopped = threading.Event()
    # with ``:each``, the file of a point without a session ends with a dot
    due = [directory / f"{point}{'.' * bool(group.mode)}" for point in group.points if point.startswith("shutdown.")]

    def send_signals() -> None:
        while not all(path.exists() for path in due) and not stopped.wait(TERM_INTERVAL):
            if deployment.has_swept(deployment.control_plane.pid("supervisor")):
                deployment.control_plane.terminate("supervisor")

    thread = threading.Thread(target=send_signals, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _run_with_command(deployment: ChaosDeployment, group: Group, directory: Path) -> Outcome:
    """Kill the supervisor in every session's turn; the command, which is killed too, then recovers the sessions."""
    deployment.control_plane.start({"web": {}, "supervisor": {}})
    deployment.control_plane.wait_until_ready()
    problems: list[str] = []

    def create(behaviour: Behaviour) -> ChaosSession:
        session = deployment.create_session(behaviour, session_steps.FIRST_PROMPT)
        session_steps.wait_for_turn(session)
        return session

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        sessions = list(pool.map(create, group.behaviours))
        deployment.control_plane.stop_at_once("supervisor")
        for number, session in enumerate(sessions):
            ACTIONS[number % len(ACTIONS)](session)
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        done = deployment.manage(
            "recover_sessions", "--wait", "30", "--json", env=crash_environment(group.spec, directory)
        )
        codes.append(done.returncode)
        if done.returncode not in (0, -9) or len(codes) > MAX_COMMAND_RUNS:
            problems.append(f"recover_sessions ended with {codes}: {done.stderr[-500:]}")
            break
    deployment.control_plane.start({"supervisor": {}})
    deployment.control_plane.wait_until_ready()
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        problems += filter(None, pool.map(_wait_until_idle, sessions))
    return check_sessions(deployment, directory, group.process, problems)


def _kill_agentctl_and_prompt(session: ChaosSession) -> None:
    session_steps.kill_agentctl(session)
    session_steps.prompt(session, "work 0.3")


ACTIONS: Final[Sequence[Callable[[ChaosSession], object]]] = (
    *(_kill_agentctl_and_prompt, _kill_agentctl_and_prompt, _kill_agentctl_and_prompt),
    session_steps.answer,
    lambda session: session_steps.request_or_refusal(session, "POST", "cancel/", {}),
    *(lambda session: session_steps.request_or_refusal(session, "POST", "stop/", {}),) * 4,
)
"""The actions while no supervisor runs; the sessions get them in rotation."""


def _wait_until_idle(session: ChaosSession) -> str:
    try:
        session_steps.wait_until_idle(session)
    except WaitTimeout as error:
        return f"stuck: {error}"
    return ""


def check_sessions(deployment: ChaosDeployment, directory: Path, process: str, problems: Sequence[str]) -> Outcome:
    """Close the open sessions, check every unchecked session, and return the outcome."""
    outcome = Outcome(violations=list(problems))
    if not problems:
        try:
            session_steps.close_all(deployment.unchecked_sessions())
        except WaitTimeout as error:
            outcome.violations.append(f"stuck: {error}")
    outcome.violations += deployment.control_plane.take_failures()
    killed = _count_reached(deployment, directory, process, outcome)
    for session in deployment.unchecked_sessions():
        outcome.sessions += 1
        found = violations(
            session, may_be_truncated=session.id in deployment.interrupted_sessions or session.id in killed
        )
        if session.row["state"] in ("COMPLETED", "CANCELLED"):
            found += _orphans(session)
        outcome.violations += found
        if found or any(session.id in problem for problem in problems):
            outcome.logs.append(f"{session.behaviour} {session.id}\n{describe(events_of(session))}")
    if outcome.violations:
        outcome.logs.append(deployment.log()[-20000:])
    deployment.mark_checked()
    return outcome


def _count_reached(deployment: ChaosDeployment, directory: Path, process: str, outcome: Outcome) -> set[str]:
    """Count the reached points in ``outcome``; return the ids of the sessions whose agentctl died."""
    behaviours = {session.id: session.behaviour for session in deployment.sessions()}
    killed = set()
    for path in directory.glob("*"):
        point = ".".join(path.name.split(".")[:2])
        who = {"agentctl": "agentctl", "request": "web"}.get(point.partition(".")[0], process)
        if path.suffix == ".log":
            for subject in path.read_text().split():
                # after a rollback, the file names a session that does not exist
                named = (
                    {behaviours.get(dashed(subject), ROLLED_BACK)}
                    if subject != "-"
                    else {one.behaviour for one in deployment.unchecked_sessions()}
                )
                outcome.reached.update((point, process, name) for name in named)
        else:
            outcome.deaths[point] += 1
            if who == "agentctl":
                killed.add(dashed(path.read_text()))
    return killed


def _orphans(session: ChaosSession) -> list[str]:
    try:
        eventually(lambda: not orphans(session), describe="all its processes have ended")
    except WaitTimeout:
        return [f"orphans: {orphans(session)} ({session.behaviour} {session.id})"]
    return []
