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

from executors_app.machine import crash_points
from executors_app.machine.process import identity
from tests.chaos import session_steps
from tests.chaos.agent_records import events_of
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.control_plane import Role, crash_environment
from tests.chaos.deployment import ChaosDeployment, ChaosSession
from tests.chaos.invariants import Evidence, describe, no_duplicate_prompt, orphans, violations
from tests.chaos.matrix import Outcome
from tests.drills.deployment import ApiError
from tests.waiting import WaitTimeout, eventually

KILLS_PER_ROUND: Final = 5
"""After this many kills, wait until everything is idle and check it."""
LONGEST_PAUSE: Final = 1.5
"""Seconds at most between two kills, and between two actions of a user."""
AGENTS: Final = ("honest", "forks", "garbage", "relaunches_itself")
TEXTS: Final = ("work 0.5", "work 2", "ask", "tool\nwork 0.3", "work 0.2\nask\nwork 0.2", "remember walrus")
EXCLUDED_POINTS: Final = (
    *("shutdown.", "agentctl.job_", "workflow.", "schedule."),
    *("wait.", "own_turn.", "background.", "budget."),
)
"""Beginnings of the points that no user of the walk reaches; ``shutdown`` is a victim of its own."""
POINTS: Final = sorted(point for point in crash_points.POINT_NAMES if not point.startswith(EXCLUDED_POINTS))
VICTIMS: Final = (
    *("web", "supervisor", "supervisor", "worker", "agentctl", "agent", "shutdown", "point", "point", "point"),
)


class RandomWalk:
    """A random walk; the same seed makes the same choices, as far as the machine's timing allows."""

    def __init__(self, deployment: ChaosDeployment, seed: int, on_kill: Callable[[int], None]):
        self.deployment, self.seed, self.on_kill = deployment, seed, on_kill
        self.choice = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.outcome = Outcome()
        self.sessions: list[ChaosSession] = []
        self.directory = Path(tempfile.mkdtemp(prefix="reached-", dir=deployment.home))

    def run(self, kills: int) -> Outcome:
        """Kill ``kills`` processes; return the outcome."""
        self.deployment.control_plane.start({"web": {}, "supervisor": {}, "worker": {}})
        self.deployment.control_plane.wait_until_ready()
        while self.kills.total() < kills and not self.outcome.violations:
            self._replace_ended_sessions()
            with self._users():
                for _ in range(min(KILLS_PER_ROUND, kills - self.kills.total())):
                    self._kill()
            self._check_all()
        self._finish()
        return self.outcome

    # --- users ---

    def _replace_ended_sessions(self) -> None:
        """Keep one session for each agent, replacing those that have ended."""
        self.sessions = [one for one in self.sessions if one.row["state"] not in ("COMPLETED", "CANCELLED")]
        present = {one.behaviour for one in self.sessions}
        for name in AGENTS:
            if name not in present:
                self.sessions.append(self.deployment.create_session(BEHAVIOURS[name], session_steps.FIRST_PROMPT))

    @contextmanager
    def _users(self) -> Iterator[None]:
        """Run one user for each session until the end of the block."""
        stopped = threading.Event()
        seeds = [self.choice.randrange(1 << 30) for _ in self.sessions]
        threads = [
            threading.Thread(target=self._act_as_user, args=(session, random.Random(seed), stopped), daemon=True)
            for session, seed in zip(self.sessions, seeds, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            for thread in threads:
                thread.join()

    def _act_as_user(self, session: ChaosSession, choice: random.Random, stopped: threading.Event) -> None:
        while not stopped.wait(choice.uniform(0.05, LONGEST_PAUSE)):
            action = choice.choice(ACTIONS)
            try:
                action(session, choice)
            except (ApiError, WaitTimeout) as error:
                self.outcome.violations.append(f"a user got no answer: {error} ({session.behaviour} {session.id})")

    # --- kills ---

    def _kill(self) -> None:
        time.sleep(self.choice.uniform(0.05, LONGEST_PAUSE))  # a random moment that the seed determines
        victim = self.choice.choice(VICTIMS)
        control_plane = self.deployment.control_plane
        if victim in ("web", "supervisor", "worker"):
            control_plane.kill(victim)  # type: ignore[arg-type]
        elif victim == "shutdown":
            control_plane.terminate("supervisor")
        elif victim == "point":
            self._arm_crash_point()
        elif not self._kill_session_process(victim):
            victim = "supervisor"
            control_plane.kill("supervisor")
        self.kills[victim] += 1
        self.on_kill(self.kills.total())
        for session in self.sessions:
            self.outcome.violations += [f"no_duplicate_prompt: {found}" for found in _duplicate_prompts(session)]

    def _arm_crash_point(self) -> None:
        """Restart a process so that it, or one of a supervisor's agentctls, dies at a point."""
        point = self.choice.choice(POINTS)
        directory = self.directory / str(self.kills.total())
        times = self.choice.choice(("", "", ":2", ":3"))
        role: Role = "web" if "web" in crash_points.processes_of(point) else "supervisor"
        self.deployment.control_plane.restart_with(role, crash_environment(f"{point}{times}", directory))

    def _kill_session_process(self, victim: str) -> bool:
        session = self.choice.choice(self.sessions)
        self.deployment.interrupted_sessions[session.id] = f"{victim} was killed"
        if victim == "agentctl":
            return session_steps.kill_agentctl(session)
        agents = [one for one in session.processes() if session_steps.is_agent(one.pid)]
        for who in agents[:1]:
            identity.send_signal(who, 9)
        return bool(agents)

    # --- checking ---

    def _check_all(self) -> None:
        """Wait until everything is idle, then check all invariants."""
        self.deployment.control_plane.restart_with("supervisor", {})
        self.deployment.control_plane.restart_with("web", {})
        for session in self.sessions:
            self._wait_until_idle(session)
        for session in self.sessions:
            self._check_session(session)

    def _wait_until_idle(self, session: ChaosSession) -> None:
        try:
            session_steps.wait_until_idle(session)
        except WaitTimeout as error:
            self.outcome.violations.append(f"stuck: {error}")

    def _check_session(self, session: ChaosSession) -> None:
        found = violations(session, may_be_truncated=True)
        self.outcome.violations += found
        if found or self.outcome.violations:
            self.outcome.logs.append(f"{session.behaviour} {session.id}\n{describe(events_of(session))}")

    def _finish(self) -> None:
        """Close every session and check that none of its processes is left."""
        if not self.outcome.violations:
            for session in self.deployment.sessions():
                self._close(session)
        self.outcome.violations += self.deployment.control_plane.take_failures()
        self.outcome.sessions = len(self.deployment.sessions())
        for path in self.directory.glob("*/*"):
            if path.suffix != ".log":
                self.outcome.deaths[path.name] += 1
        if self.outcome.violations:
            self.outcome.logs.append(self.deployment.log()[-20000:])

    def _close(self, session: ChaosSession) -> None:
        try:
            session_steps.close(session)
            eventually(lambda: not orphans(session), timeout=60, describe="all its processes have ended")
        except WaitTimeout as error:
            self.outcome.violations.append(f"orphans: {orphans(session)} {error} ({session.behaviour} {session.id})")
        self._check_session(session)


def _duplicate_prompts(session: ChaosSession) -> Sequence[str]:
    """Return prompts that were delivered twice.

    Reads the agent's records before the prompts: a prompt is always stored before the agent receives it.
    """
    evidence = Evidence(session, may_be_truncated=True)
    evidence.received, evidence.prompts  # noqa: B018 - in this order
    return [found for found in no_duplicate_prompt(evidence) if "times" in found]


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


def _change_queue(session: ChaosSession, choice: random.Random) -> None:
    """Edit, move or withdraw a prompt of the queue, if one waits there."""
    queued = [row for row in session.rows("session_prompts") if (row["state"], row["kind"]) == ("queued", "user")]
    if not queued:
        return
    row = choice.choice(queued)
    path = f"prompts/{row['message_id']}/"
    change = choice.choice(("edit", "move", "withdraw"))
    if change == "withdraw":
        session_steps.request_or_refusal(session, "DELETE", path)
    elif change == "move":
        session_steps.request_or_refusal(session, "PATCH", path, {"position": 1})
    else:
        text = session.deployment.tagged(choice.choice(TEXTS))
        session_steps.request_or_refusal(session, "PATCH", path, {"text": text, "version": row["text_version"]})


ACTIONS: Final = (
    *(_prompt, _prompt, _prompt, _answer, _answer, _cancel, _stop, _resume),
    *(_change_queue, _change_queue),
)
"""What users do, the frequent more than once."""
