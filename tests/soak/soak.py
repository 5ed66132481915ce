"""One soak: users prompt, everything dies at random, then all comes to rest and is judged."""

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

from executors_app.agentctl.process import execution_processes, identity
from tests.chaos import session_steps
from tests.chaos.behaviours import BEHAVIOURS
from tests.chaos.deployment import ChaosSession
from tests.chaos.invariants import orphans
from tests.chaos.invariants import violations as violations_of_agent
from tests.drills.deployment import ApiError
from tests.postgresql import Server
from tests.soak import invariants
from tests.soak.deployment import FakeSession, SoakDeployment
from tests.soak.memory import Life, Watch
from tests.waiting import WaitTimeout, eventually

USERS: Final = 4
LONGEST_PAUSE: Final = 1.5
"""Seconds at most between two kills, and between two prompts of one user."""
CALM: Final = 1 / 3
"""The last share of the time, in which only what runs agents dies: long lives, whose memory can be judged."""
REST_WITHIN: Final = 240.0
"""Seconds without any progress until nobody waits for rest any more: a start that is given up after
``places.PATIENT``, its longest pause, and one more. How many one after the other can be carried out is the machine's.
"""
LOOKS: Final = 2
"""So many times in a row all is at rest: between two steps of the supervisor it may seem so."""
LOOK_EVERY: Final = 2.0
"""Seconds; each look reads every log, which takes the processor from those who are to come to rest."""
WHILE_COMING_UP: Final = 0.1
AGENTS: Final = ("honest", "forks")
TEXTS: Final = ("work 0.3", "work 1", "tool\nwork 0.2", "remember walrus")
ALWAYS: Final = ("fake agentctls", "fake agentctls", "agentctl", "agent")
"""What dies at any time."""
CONTROL_PLANE: Final = ("web", "supervisor", "supervisor", "worker", "shutdown", "everything")


@dataclass
class Result:
    """What was seen."""

    given: dict[str, str] = field(default_factory=dict)
    """Prompts that were accepted of users, with their sessions."""
    refused: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    answers: int = 0
    broken: dict[str, list[str]] = field(default_factory=dict)
    """By invariant, what broke it."""
    lives: list[Life] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether everything does."""
        return not any(self.broken.values())


class Patience:
    """Ends so many seconds after there was less left to do than ever before."""

    def __init__(self, seconds: float):
        self._seconds, self._least = seconds, math.inf
        self._until = time.monotonic() + seconds

    def ends(self, left: int) -> bool:
        """Whether it has ended, with so much left."""
        if left < self._least:
            self._least, self._until = left, time.monotonic() + self._seconds
        return time.monotonic() > self._until


class Soak:
    """A world under load; the same seed makes the same choices, as far as the machine's own timing allows."""

    def __init__(self, world: SoakDeployment, seed: int, server: Server | None, tell: Callable[[float, str], None]):
        self.world, self.server, self.tell = world, server, tell
        self.choice = random.Random(seed)
        self.result = Result()
        self.many: Sequence[FakeSession] = ()
        self.real: Sequence[ChaosSession] = ()
        self._sleeping = threading.Event()

    def run(self, seconds: float, sessions: int, agents: int) -> Result:
        """All of it."""
        control_plane = self.world.control_plane
        self.many = self.world.fill(sessions)
        control_plane.start({"web": {}, "supervisor": {}, "worker": {}})
        control_plane.wait_until_ready()
        names = [AGENTS[number % len(AGENTS)] for number in range(agents)]
        self.real = [self.world.begin(BEHAVIOURS[name], "work 0.3") for name in names]
        self.result.sessions = sessions + agents
        with Watch(self._living) as watch:
            with self._users():
                self._kill_for(seconds)
            self.tell(seconds, "all comes to rest")
            seen = self._rest()
        self.result.lives = list(watch.lives.values())
        self._judge(seen)
        return self.result

    def _living(self) -> dict[str, int]:
        return self.world.control_plane.pids()

    # --- users ---

    @contextmanager
    def _users(self) -> Iterator[None]:
        over = threading.Event()
        seeds = [self.choice.randrange(1 << 30) for _ in range(USERS)]
        threads = [threading.Thread(target=self._use, args=(random.Random(seed), over), daemon=True) for seed in seeds]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _use(self, choice: random.Random, over: threading.Event) -> None:
        while not over.wait(choice.uniform(0.0, LONGEST_PAUSE)):
            try:
                if self.real and choice.random() < 0.2:
                    session_steps.prompt(choice.choice(self.real), choice.choice(TEXTS))
                else:
                    self._prompt(choice.choice(self.many), choice)
            except (ApiError, WaitTimeout) as error:
                self.result.broken.setdefault("users are answered", []).append(str(error))

    def _prompt(self, session: FakeSession, choice: random.Random) -> None:
        message_id = uuid.UUID(int=choice.getrandbits(128)).hex
        try:
            self.world.ask("POST", f"{session.path}/prompt/", {"message_id": message_id, "text": "go on"})
        except ApiError as error:
            if error.status >= 500:
                raise
            self.result.refused += 1
        else:
            self.result.given[message_id] = session.id

    # --- kills ---

    def _kill_for(self, seconds: float) -> None:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            calm = passed > seconds * (1 - CALM)
            victims = ALWAYS if calm or not self._may_die() else (*ALWAYS, *CONTROL_PLANE, *self._database)
            self._kill(self.choice.choice(victims))
            self.tell(passed, f"{self.result.kills.total()} kills, {len(self.result.given)} prompts")
            self._sleeping.wait(self.choice.uniform(0.05, LONGEST_PAUSE))

    def _may_die(self) -> bool:
        """The control plane dies when it is up, and now and then while it comes up: else nobody would be answered."""
        return self.world.is_ready() or self.choice.random() < WHILE_COMING_UP

    @property
    def _database(self) -> Sequence[str]:
        return ("database",) if self.server else ()

    def _kill(self, victim: str) -> None:
        control_plane = self.world.control_plane
        if victim == "fake agentctls":
            for session in self.choice.sample(list(self.many), max(1, len(self.many) // 50)):
                self.world.request_fakes(f"end/{session.execution_id}", post=True)
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
        if not self.real:
            return False
        session = self.choice.choice(self.real)
        self.world.excused[session.id] = f"{victim} was killed"
        if victim == "agentctl":
            return bool(
                execution_processes.find_processes(session.execution_id).agentctl
            ) and session_steps.kill_agentctl(session)
        agents = [one for one in session.processes() if session_steps.is_agent(one.pid)]
        for who in agents[:1]:
            identity.send_signal(who, 9)
        return bool(agents)

    # --- the end ---

    def _rest(self) -> invariants.Seen:
        """Until nothing breaks any more what must hold; then, or when patience ends, what there is."""
        patience, calm = Patience(REST_WITHIN), 0
        while True:
            seen = invariants.look(self.world, self.many, dict(self.result.given))
            restless = sum(map(len, invariants.violations(seen).values())) + sum(
                1 for one in self.real if unfinished(one)
            )
            calm = 0 if restless else calm + 1
            if calm == LOOKS or patience.ends(restless + self._undone()):
                return seen
            time.sleep(LOOK_EVERY)

    def _undone(self) -> int:
        """How many prompts are still under way."""
        rows = self.world.rows("SELECT state, COUNT(*) AS count FROM session_prompts GROUP BY state")
        return sum(row["count"] for row in rows if row["state"] in invariants.UNDER_WAY)

    def _judge(self, seen: invariants.Seen) -> None:
        broken = self.result.broken
        for name, found in invariants.violations(seen).items():
            broken.setdefault(name, []).extend(found)
        broken["every state as it should be"] += filter(None, map(unfinished, self.real))
        for session in self.real:
            broken.setdefault("real agents", []).extend(violations_of_agent(session, excused=True))
        self._close(self.real)
        broken.setdefault("processes end when told to, and not by themselves", []).extend(
            self.world.control_plane.take_failures()
        )
        broken["memory is flat"] = [
            f"the {one.role} had {one.first:.0f} MB at half of its life, in the end {one.last:.0f} MB"
            for one in self.result.lives
            if one.grew_too_much
        ]
        self.result.answers = sum(map(len, seen.said.values()))

    def _close(self, sessions: Sequence[ChaosSession]) -> None:
        for session in sessions:
            try:
                session_steps.close(session)
                eventually(lambda session=session: not orphans(session), timeout=30)  # type: ignore[misc]
            except (WaitTimeout, AssertionError) as error:
                self.result.broken["no orphans"].append(f"{session.behaviour} {session.id}: {error}")


def unfinished(session: ChaosSession) -> str:
    """Empty where a real agent is up and waits, and nothing waits for it; else what there is."""
    row, execution = session.row, session.rows("executors_running")[-1]
    queued = [one["message_id"] for one in session.rows("session_prompts") if one["state"] == "queued"]
    is_up = row["state"] in invariants.RIGHT_STATES and execution["status"] == "ready" and row["launch_id"]
    if trouble := session_steps.pending_work(session) or (f"prompts {queued}" if queued else ""):
        return f"{session.behaviour} {session.id}: {trouble}"
    return "" if is_up else f"{session.behaviour} {session.id} is {row['state']}, its execution {execution['status']}"
