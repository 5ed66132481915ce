"""The kill-point matrix: every crash point, in every process that has it, with every behaviour of the agent."""

from __future__ import annotations

import tempfile
import threading
import uuid
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
from tests.chaos.control_plane import armed
from tests.chaos.deployment import ChaosDeployment, ChaosSession
from tests.chaos.invariants import describe, orphans, violations
from tests.waiting import WaitTimeout, eventually

AT_ONCE: Final = 6
"""Number of concurrent sessions."""
TERM_EVERY: Final = 3.0
"""Seconds between two SIGTERMs to a supervisor that is to die in its shutdown."""
COMMAND_TRIES: Final = 60
MORE_TRIES: Final = 3
"""How often a missed point is tried again: of two deaths at one moment, the first prevents the second."""
GONE_WITHIN: Final = 20.0
ROLLED_BACK: Final = "rolled back"


@dataclass
class Outcome:
    """What one or more deployments have shown."""

    reached: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """How often a point was reached, by (point, process, behaviour)."""
    deaths: Counter[str] = field(default_factory=Counter)
    """How often a process died, by point."""
    violations: list[str] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)
    sessions: int = 0

    def add(self, other: Outcome) -> None:
        """Merge another outcome into this one."""
        self.reached += other.reached
        self.deaths += other.deaths
        self.violations += other.violations
        self.stories += other.stories
        self.sessions += other.sessions


@dataclass(frozen=True)
class Group:
    """Cells that share a deployment: these points, killed as ``how`` says, with these behaviours."""

    points: Sequence[str]
    behaviours: Sequence[Behaviour]
    how: str = ":each"
    """``:each`` kills once for each session, the empty text once in total."""
    process: str = "supervisor"
    """``recover_sessions`` sweeps with the command instead of the supervisor."""

    @property
    def spec(self) -> str:
        """Return the value for the environment variable."""
        return ",".join(f"{point}{self.how}" for point in self.points)

    @property
    def in_web(self) -> bool:
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
            unmet = [one for one in able if not outcome.reached[point, self.process, one.name]]
            if unmet and (self.how or unmet == able):
                missing.append(replace(self, points=[point], behaviours=unmet))
        return missing


def run(world: ChaosDeployment, group: Group) -> Outcome:
    """Run a group; a point missed because of another death gets its own deployment."""
    outcome = run_once(world, group)
    for _ in range(MORE_TRIES):
        if outcome.violations:
            break
        for missed in group.unreached(outcome):
            outcome.add(run_once(world, missed))
    return outcome


def run_once(world: ChaosDeployment, group: Group) -> Outcome:
    """Run in a prepared deployment while its processes die, and check what is left."""
    directory = Path(tempfile.mkdtemp(prefix="reached-", dir=world.home))
    try:
        if group.process == "recover_sessions":
            return _by_command(world, group, directory)
        return _by_supervisor(world, group, directory)
    finally:
        world.control_plane.rest()


def _by_supervisor(world: ChaosDeployment, group: Group, directory: Path) -> Outcome:
    environment = armed(group.spec, directory)
    begins_first = bool(group.how) and group.in_web
    world.control_plane.start({"web": {} if begins_first else environment, "supervisor": environment})
    world.control_plane.wait_until_ready()
    troubles: list[str] = []

    def begin(behaviour: Behaviour) -> ChaosSession:
        return world.begin(behaviour, session_steps.FIRST_PROMPT, args_for(group.points, behaviour))

    def live(behaviour: Behaviour, begun: ChaosSession | None) -> None:
        try:
            session = begun or begin(behaviour)
            for step in session_steps.steps_for(group.points, behaviour):
                step(session)
        except WaitTimeout as error:
            troubles.append(f"stuck: {error}")

    with _terms(world, group, directory), ThreadPoolExecutor(AT_ONCE) as pool:
        begun: Iterable[ChaosSession | None] = repeat(None)
        if begins_first:  # a session whose creation crashes is a new one on the next try, and would crash again
            begun = list(pool.map(begin, group.behaviours))
            world.control_plane.rearm("web", environment)
        list(pool.map(live, group.behaviours, begun))
    return judge(world, directory, group.process, troubles)


@contextmanager
def _terms(world: ChaosDeployment, group: Group, directory: Path) -> Iterator[None]:
    """Send SIGTERM to the supervisor from time to time until it has died during its shutdown.

    Only to one whose first pass is over: one that is slow to start would otherwise never do any work.
    """
    over = threading.Event()
    # with ``:each``, the file of a point without a session ends with a dot
    due = [directory / f"{point}{'.' * bool(group.how)}" for point in group.points if point.startswith("shutdown.")]

    def tell() -> None:
        while not all(path.exists() for path in due) and not over.wait(TERM_EVERY):
            if world.has_swept(world.control_plane.pid("supervisor")):
                world.control_plane.terminate("supervisor")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _by_command(world: ChaosDeployment, group: Group, directory: Path) -> Outcome:
    """Kill the supervisor in every session's turn; the command, which dies too, carries out what is requested."""
    world.control_plane.start({"web": {}, "supervisor": {}})
    world.control_plane.wait_until_ready()
    troubles: list[str] = []

    def begin(behaviour: Behaviour) -> ChaosSession:
        session = world.begin(behaviour, session_steps.FIRST_PROMPT)
        session_steps.wait_for_turn(session)
        return session

    with ThreadPoolExecutor(AT_ONCE) as pool:
        sessions = list(pool.map(begin, group.behaviours))
        world.control_plane.stop_at_once("supervisor")
        for number, session in enumerate(sessions):
            ORDERS[number % len(ORDERS)](session)
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        done = world.manage("recover_sessions", "--wait", "30", "--json", env=armed(group.spec, directory))
        codes.append(done.returncode)
        if done.returncode not in (0, -9) or len(codes) > COMMAND_TRIES:
            troubles.append(f"recover_sessions ended with {codes}: {done.stderr[-500:]}")
            break
    world.control_plane.start({"supervisor": {}})
    world.control_plane.wait_until_ready()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        troubles += filter(None, pool.map(_rest, sessions))
    return judge(world, directory, group.process, troubles)


def _lose(session: ChaosSession) -> None:
    session_steps.kill_agentctl(session)
    session_steps.prompt(session, "work 0.3")


ORDERS: Final[Sequence[Callable[[ChaosSession], object]]] = (
    *(_lose, _lose, _lose),
    session_steps.answer,
    lambda session: session_steps.request_or_refusal(session, "POST", "cancel/", {}),
    *(lambda session: session_steps.request_or_refusal(session, "POST", "stop/", {}),) * 4,
)
"""What happens to each session in turn while no supervisor runs."""


def _rest(session: ChaosSession) -> str:
    try:
        session_steps.wait_until_idle(session)
    except WaitTimeout as error:
        return f"stuck: {error}"
    return ""


def judge(world: ChaosDeployment, directory: Path, process: str, troubles: Sequence[str]) -> Outcome:
    """Close what is open and check every session."""
    outcome = Outcome(violations=list(troubles))
    if not troubles:
        try:
            session_steps.close_all(world.unchecked_sessions())
        except WaitTimeout as error:
            outcome.violations.append(f"stuck: {error}")
    outcome.violations += world.control_plane.take_failures()
    killed = _read(world, directory, process, outcome)
    for session in world.unchecked_sessions():
        outcome.sessions += 1
        found = violations(session, excused=session.id in world.excused or session.id in killed)
        if session.row["state"] in ("COMPLETED", "CANCELLED"):
            found += _orphans(session)
        outcome.violations += found
        if found or any(session.id in trouble for trouble in troubles):
            outcome.stories.append(f"{session.behaviour} {session.id}\n{describe(events_of(session))}")
    if outcome.violations:
        outcome.stories.append(world.log()[-20000:])
    world.mark_checked()
    return outcome


def _read(world: ChaosDeployment, directory: Path, process: str, outcome: Outcome) -> set[str]:
    """Count the points reached; return the sessions whose agentctl died."""
    behaviours = {session.id: session.behaviour for session in world.sessions()}
    killed = set()
    for path in directory.glob("*"):
        point = ".".join(path.name.split(".")[:2])
        who = "agentctl" if point.startswith("agentctl.") else "web" if point.startswith("request.") else process
        if path.suffix == ".log":
            for subject in path.read_text().split():
                # after a rollback, the file names a session that does not exist
                named = (
                    {behaviours.get(_dashed(subject), ROLLED_BACK)}
                    if subject != "-"
                    else {one.behaviour for one in world.unchecked_sessions()}
                )
                outcome.reached.update((point, process, name) for name in named)
        else:
            outcome.deaths[point] += 1
            if who == "agentctl":
                killed.add(_dashed(path.read_text()))
    return killed


def _dashed(key: str) -> str:
    return str(uuid.UUID(key))


def _orphans(session: ChaosSession) -> list[str]:
    try:
        eventually(lambda: not orphans(session), timeout=GONE_WITHIN, describe="nothing of it runs")
    except WaitTimeout:
        return [f"orphans: {orphans(session)} ({session.behaviour} {session.id})"]
    return []
