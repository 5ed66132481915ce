"""The soak test: users send prompts while processes are killed at random; then everything is checked when idle."""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from executors_app.machine.process import execution_processes, identity
from tests.chaos import session_steps
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.deployment import ChaosSession
from tests.chaos.invariants import orphans
from tests.chaos.invariants import violations as violations_of_agent
from tests.drills.deployment import ApiError
from tests.postgresql import Server
from tests.soak import invariants
from tests.soak.deployment import FakeSession, SoakDeployment
from tests.soak.memory import MemorySampler, ProcessMemory
from tests.waiting import WaitTimeout, eventually

USERS: Final = 4
LONGEST_PAUSE: Final = 1.5
"""Seconds at most between two kills, and between two prompts of one user."""
QUIET_SHARE: Final = 1 / 3
"""The last share of the time, in which only agents and agentctls are killed, so that the control plane runs long
enough to judge its memory."""
IDLE_TIMEOUT: Final = 240.0
"""Seconds without progress after which the wait for idle sessions ends: the START_TIMEOUT of a start that fails, its
longest backoff, and another start. How many starts run in sequence depends on the machine, so progress extends it.
"""
IDLE_CHECKS: Final = 2
"""Checks in a row that must find everything idle: between two steps of the supervisor it may only seem so."""
CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks. Each reads every log, which takes processor time from the sessions."""
KILL_WHILE_NOT_READY: Final = 0.1
"""Probability of a kill of the control plane while it is not ready."""
AGENTS: Final = ("honest", "forks")
TEXTS: Final = ("work 0.3", "work 1", "tool\nwork 0.2", "remember walrus")
AGENT_VICTIMS: Final = ("fake agentctls", "fake agentctls", "agentctl", "agent")
"""What is killed at any time."""
CONTROL_PLANE_VICTIMS: Final = ("web", "supervisor", "supervisor", "worker", "shutdown", "everything")


@dataclass
class Result:
    """The result of a soak test."""

    accepted: dict[str, str] = field(default_factory=dict)
    """Session ids of the accepted prompts, by message id."""
    refused: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    answers: int = 0
    violations: dict[str, list[str]] = field(default_factory=dict)
    """Violations by invariant."""
    processes: list[ProcessMemory] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Return whether no invariant was violated."""
        return not any(self.violations.values())


class ProgressDeadline:
    """A deadline that is extended whenever less work remains than ever before."""

    def __init__(self, seconds: float):
        self._seconds, self._least = seconds, math.inf
        self._until = time.monotonic() + seconds

    def is_over(self, remaining: int) -> bool:
        """Return whether the deadline has passed, given the amount of remaining work."""
        if remaining < self._least:
            self._least, self._until = remaining, time.monotonic() + self._seconds
        return time.monotonic() > self._until


class Soak:
    """A deployment under load; the same seed makes the same choices, as far as the machine's timing allows."""

    def __init__(
        self, deployment: SoakDeployment, seed: int, server: Server | None, on_progress: Callable[[float, str], None]
    ):
        self.deployment, self.server, self.on_progress = deployment, server, on_progress
        self.choice = random.Random(seed)
        self.result = Result()
        self.fake_sessions: Sequence[FakeSession] = ()
        self.agent_sessions: Sequence[ChaosSession] = ()
        self._pause = threading.Event()

    def run(self, seconds: float, sessions: int, agents: int) -> Result:
        """Run the whole test: users and kills for ``seconds``, then the checks; return the result."""
        control_plane = self.deployment.control_plane
        self.fake_sessions = self.deployment.create_sessions(sessions)
        control_plane.start({"web": {}, "supervisor": {}, "worker": {}})
        control_plane.wait_until_ready()
        names = [AGENTS[number % len(AGENTS)] for number in range(agents)]
        self.agent_sessions = [self.deployment.create_session(BEHAVIOURS[name], "work 0.3") for name in names]
        self.result.sessions = sessions + agents
        with MemorySampler(self._running_pids) as sampler:
            with self._users():
                self._kill_for(seconds)
            self.on_progress(seconds, "waiting until idle")
            records = self._wait_until_idle()
        self.result.processes = list(sampler.processes.values())
        self._check(records)
        return self.result

    def _running_pids(self) -> dict[str, int]:
        return self.deployment.control_plane.pids()

    # --- users ---

    @contextmanager
    def _users(self) -> Iterator[None]:
        stopped = threading.Event()
        seeds = [self.choice.randrange(1 << 30) for _ in range(USERS)]
        threads = [
            threading.Thread(target=self._act_as_user, args=(random.Random(seed), stopped), daemon=True)
            for seed in seeds
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            for thread in threads:
                thread.join()

    def _act_as_user(self, choice: random.Random, stopped: threading.Event) -> None:
        while not stopped.wait(choice.uniform(0.0, LONGEST_PAUSE)):
            try:
                if self.agent_sessions and choice.random() < 0.2:
                    session_steps.prompt(choice.choice(self.agent_sessions), choice.choice(TEXTS))
                else:
                    self._prompt(choice.choice(self.fake_sessions), choice)
            except (ApiError, WaitTimeout) as error:
                self.result.violations.setdefault("users are answered", []).append(str(error))

    def _prompt(self, session: FakeSession, choice: random.Random) -> None:
        message_id = uuid.UUID(int=choice.getrandbits(128)).hex
        try:
            self.deployment.request("POST", f"{session.path}/prompt/", {"message_id": message_id, "text": "go on"})
        except ApiError as error:
            if error.status >= 500:
                raise
            self.result.refused += 1
        else:
            self.result.accepted[message_id] = session.id

    # --- kills ---

    def _kill_for(self, seconds: float) -> None:
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            is_quiet = elapsed > seconds * (1 - QUIET_SHARE)
            victims = list(AGENT_VICTIMS)
            if not is_quiet and self._may_kill_control_plane():
                victims += [*CONTROL_PLANE_VICTIMS, *self._database]
            self._kill(self.choice.choice(victims))
            self.on_progress(elapsed, f"{self.result.kills.total()} kills, {len(self.result.accepted)} prompts")
            self._pause.wait(self.choice.uniform(0.05, LONGEST_PAUSE))

    def _may_kill_control_plane(self) -> bool:
        """Spare a control plane that is not ready most of the time: otherwise it would never answer a request."""
        return self.deployment.is_ready() or self.choice.random() < KILL_WHILE_NOT_READY

    @property
    def _database(self) -> Sequence[str]:
        return ("database",) if self.server else ()

    def _kill(self, victim: str) -> None:
        control_plane = self.deployment.control_plane
        if victim == "fake agentctls":
            for session in self.choice.sample(list(self.fake_sessions), max(1, len(self.fake_sessions) // 50)):
                self.deployment.request_fakes(f"end/{session.execution_id}", post=True)
        elif victim in ("agentctl", "agent"):
            if not self._kill_agent(victim):
                return
        elif victim == "shutdown":
            control_plane.terminate("supervisor")
        elif victim == "everything":
            for role in ("web", "supervisor", "worker"):
                control_plane.kill(role)
        elif victim == "database":
            assert self.server is not None
            self.server.stop()
            self.server.start()
        else:
            control_plane.kill(victim)  # type: ignore[arg-type]
        self.result.kills[victim] += 1

    def _kill_agent(self, victim: str) -> bool:
        if not self.agent_sessions:
            return False
        session = self.choice.choice(self.agent_sessions)
        self.deployment.interrupted_sessions[session.id] = f"{victim} was killed"
        if victim == "agentctl":
            return bool(
                execution_processes.find_processes(session.execution_id).agentctl
            ) and session_steps.kill_agentctl(session)
        agents = [one for one in session.processes() if session_steps.is_agent(one.pid)]
        for who in agents[:1]:
            identity.send_signal(who, 9)
        return bool(agents)

    # --- the end ---

    def _wait_until_idle(self) -> invariants.Records:
        """Wait until no invariant is violated or the deadline has passed; return the last records."""
        deadline, idle_checks = ProgressDeadline(IDLE_TIMEOUT), 0
        while True:
            records = invariants.read_records(self.deployment, self.fake_sessions, dict(self.result.accepted))
            pending = sum(map(len, invariants.find_violations(records).values())) + sum(
                1 for one in self.agent_sessions if describe_pending_work(one)
            )
            idle_checks = 0 if pending else idle_checks + 1
            if idle_checks == IDLE_CHECKS or deadline.is_over(pending + self._count_pending_prompts()):
                return records
            time.sleep(CHECK_INTERVAL)

    def _count_pending_prompts(self) -> int:
        """Return the number of prompts that are still in progress."""
        rows = self.deployment.rows("SELECT state, COUNT(*) AS count FROM session_prompts GROUP BY state")
        return sum(row["count"] for row in rows if row["state"] in invariants.PENDING_STATES)

    def _check(self, records: invariants.Records) -> None:
        violations = self.result.violations
        for name, found in invariants.find_violations(records).items():
            violations.setdefault(name, []).extend(found)
        violations["expected states"] += filter(None, map(describe_pending_work, self.agent_sessions))
        for session in self.agent_sessions:
            violations.setdefault("real agents", []).extend(violations_of_agent(session, may_be_truncated=True))
        self._close(self.agent_sessions)
        violations.setdefault("processes end only when requested", []).extend(
            self.deployment.control_plane.take_failures()
        )
        violations["memory is flat"] = [
            f"the {one.role} had {one.first:.0f} MB halfway through its life and {one.last:.0f} MB at the end"
            for one in self.result.processes
            if one.grew_too_much
        ]
        self.result.answers = sum(map(len, records.answers.values()))

    def _close(self, sessions: Sequence[ChaosSession]) -> None:
        for session in sessions:
            try:
                session_steps.close(session)
                eventually(lambda session=session: not orphans(session), timeout=30)  # type: ignore[misc]
            except (WaitTimeout, AssertionError) as error:
                self.result.violations["no orphans"].append(f"{session.behaviour} {session.id}: {error}")


def describe_pending_work(session: ChaosSession) -> str:
    """Return what a session with a real agent still does, or an empty string if it is idle and its agent is ready."""
    row, execution = session.row, session.rows("executors_running")[-1]
    queued = [one["message_id"] for one in session.rows("session_prompts") if one["state"] == "queued"]
    is_up = row["state"] in invariants.IDLE_STATES and execution["status"] == "ready" and row["launch_id"]
    if pending := session_steps.pending_work(session) or (f"prompts {queued}" if queued else ""):
        return f"{session.behaviour} {session.id}: {pending}"
    return "" if is_up else f"{session.behaviour} {session.id} is {row['state']}, its execution {execution['status']}"
