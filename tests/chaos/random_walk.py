"""A seeded random walk: users do anything, processes die at any time, and the invariants are checked in between."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executors_app import crash_points
from executors_app.agentctl.process import identity
from tests.chaos import session_steps
from tests.chaos.agent_records import events_of
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.control_plane import Role, armed
from tests.chaos.deployment import ChaosDeployment, ChaosSession
from tests.chaos.invariants import Evidence, describe, no_prompt_twice, orphans, violations
from tests.chaos.matrix import Outcome
from tests.drills.deployment import ApiError
from tests.waiting import WaitTimeout, eventually

KILLS_A_ROUND: Final = 5
"""After this many kills, everything comes to rest and is checked."""
LONGEST_PAUSE: Final = 1.5
"""Seconds at most between two kills, and between two actions of a user."""
AGENTS: Final = ("honest", "forks", "garbage", "relaunches_itself")
TEXTS: Final = ("work 0.5", "work 2", "ask", "tool\nwork 0.3", "work 0.2\nask\nwork 0.2", "remember walrus")
ELSEWHERE: Final = ("shutdown.", "agentctl.job_", "workflow.")
POINTS: Final = sorted(point for point in crash_points.POINT_NAMES if not point.startswith(ELSEWHERE))
VICTIMS: Final = (
    *("web", "supervisor", "supervisor", "worker", "agentctl", "agent", "shutdown", "point", "point", "point"),
)


class RandomWalk:
    """One walk; the same seed makes the same choices, as far as the machine's timing allows."""

    def __init__(self, world: ChaosDeployment, seed: int, tell: Callable[[int], None]):
        self.world, self.seed, self.tell = world, seed, tell
        self.choice = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.outcome = Outcome()
        self.sessions: list[ChaosSession] = []
        self.directory = Path(tempfile.mkdtemp(prefix="reached-", dir=world.home))

    def run(self, kills: int) -> Outcome:
        """Kill that many times; return the outcome."""
        self.world.control_plane.start({"web": {}, "supervisor": {}, "worker": {}})
        self.world.control_plane.wait_until_ready()
        while self.kills.total() < kills and not self.outcome.violations:
            self._fill()
            with self._users():
                for _ in range(min(KILLS_A_ROUND, kills - self.kills.total())):
                    self._kill()
            self._look()
        self._end()
        return self.outcome

    # --- users ---

    def _fill(self) -> None:
        """Keep as many sessions as there are agents, replacing those that have ended."""
        self.sessions = [one for one in self.sessions if one.row["state"] not in ("COMPLETED", "CANCELLED")]
        there = {one.behaviour for one in self.sessions}
        for name in AGENTS:
            if name not in there:
                self.sessions.append(self.world.begin(BEHAVIOURS[name], session_steps.FIRST_PROMPT))

    @contextmanager
    def _users(self) -> Iterator[None]:
        """Run one user for each session until the end of the block."""
        over = threading.Event()
        seeds = [self.choice.randrange(1 << 30) for _ in self.sessions]
        threads = [
            threading.Thread(target=self._use, args=(session, random.Random(seed), over), daemon=True)
            for session, seed in zip(self.sessions, seeds, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _use(self, session: ChaosSession, choice: random.Random, over: threading.Event) -> None:
        while not over.wait(choice.uniform(0.05, LONGEST_PAUSE)):
            act = choice.choice((_prompt, _prompt, _prompt, _answer, _answer, _cancel, _stop, _resume))
            try:
                act(session, choice)
            except (ApiError, WaitTimeout) as error:
                self.outcome.violations.append(f"a user got no answer: {error} ({session.behaviour} {session.id})")

    # --- kills ---

    def _kill(self) -> None:
        time.sleep(self.choice.uniform(0.05, LONGEST_PAUSE))  # a random moment that the seed determines
        victim = self.choice.choice(VICTIMS)
        control_plane = self.world.control_plane
        if victim in ("web", "supervisor", "worker"):
            control_plane.kill(victim)  # type: ignore[arg-type]
        elif victim == "shutdown":
            control_plane.terminate("supervisor")
        elif victim == "point":
            self._arm()
        elif not self._kill_of_session(victim):
            victim = "supervisor"
            control_plane.kill("supervisor")
        self.kills[victim] += 1
        self.tell(self.kills.total())
        for session in self.sessions:
            self.outcome.violations += [f"no_prompt_twice: {found}" for found in _twice(session)]

    def _arm(self) -> None:
        """Restart a process so that it, or one of a supervisor's agentctls, dies at a point."""
        point = self.choice.choice(POINTS)
        directory = self.directory / str(self.kills.total())
        times = self.choice.choice(("", "", ":2", ":3"))
        role: Role = "web" if point.startswith("request.") else "supervisor"
        self.world.control_plane.rearm(role, armed(f"{point}{times}", directory))

    def _kill_of_session(self, victim: str) -> bool:
        session = self.choice.choice(self.sessions)
        self.world.excused[session.id] = f"{victim} was killed"
        if victim == "agentctl":
            return session_steps.kill_agentctl(session)
        agents = [one for one in session.processes() if session_steps.is_agent(one.pid)]
        for who in agents[:1]:
            identity.send_signal(who, 9)
        return bool(agents)

    # --- checking ---

    def _look(self) -> None:
        """Wait until everything is at rest, then check all invariants."""
        self.world.control_plane.rearm("supervisor", {})
        self.world.control_plane.rearm("web", {})
        for session in self.sessions:
            self._settle(session)
        for session in self.sessions:
            self._judge(session)

    def _settle(self, session: ChaosSession) -> None:
        try:
            session_steps.wait_until_idle(session)
        except WaitTimeout as error:
            self.outcome.violations.append(f"stuck: {error}")

    def _judge(self, session: ChaosSession) -> None:
        found = violations(session, excused=True)
        self.outcome.violations += found
        if found or self.outcome.violations:
            self.outcome.stories.append(f"{session.behaviour} {session.id}\n{describe(events_of(session))}")

    def _end(self) -> None:
        """Close everything and check that nothing is left and nothing runs."""
        if not self.outcome.violations:
            for session in self.world.sessions():
                self._close(session)
        self.outcome.violations += self.world.control_plane.take_failures()
        self.outcome.sessions = len(self.world.sessions())
        for path in self.directory.glob("*/*"):
            if path.suffix != ".log":
                self.outcome.deaths[path.name] += 1
        if self.outcome.violations:
            self.outcome.stories.append(self.world.log()[-20000:])

    def _close(self, session: ChaosSession) -> None:
        try:
            session_steps.close(session)
            eventually(lambda: not orphans(session), timeout=20, describe="nothing of it runs")
        except WaitTimeout as error:
            self.outcome.violations.append(f"orphans: {orphans(session)} {error} ({session.behaviour} {session.id})")
        self._judge(session)


def _twice(session: ChaosSession) -> Sequence[str]:
    """Return prompts that arrived twice; read the agent's records first, because the queue is always ahead of them."""
    seen = Evidence(session, excused=True)
    seen.heard, seen.prompts  # noqa: B018 - in this order
    return [found for found in no_prompt_twice(seen) if "times" in found]


def _prompt(session: ChaosSession, choice: random.Random) -> None:
    session_steps.prompt(session, choice.choice(TEXTS))


def _answer(session: ChaosSession, choice: random.Random) -> None:
    session_steps.answer(session)


def _cancel(session: ChaosSession, choice: random.Random) -> None:
    session_steps.request_or_refusal(session, "POST", "cancel/", {})


def _stop(session: ChaosSession, choice: random.Random) -> None:
    if choice.random() < 0.3:
        session_steps.request_or_refusal(session, "POST", "stop/", {})


def _resume(session: ChaosSession, choice: random.Random) -> None:
    session_steps.request_or_refusal(session, "POST", "resume/", {"mode": "auto"})
