"""Time until a killed codex-acp is back: beside its own start, and beside ``acpx``, another manager of ACP sessions.

The floor is the agent's own spawn, ``initialize`` and ``session/load`` over bare pipes. Everything is measured
alternately, so that load affects all alike.
"""

from __future__ import annotations

import json
import select
import shlex
import statistics
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process import identity
from executors_app.models import AgentProfile, ExecutorRunning
from executors_app.wire.protocol import EXECUTION_MARKER
from sessions_app.board.services import tasks
from sessions_app.kernel import wakeups
from sessions_app.kernel.rules.states import SessionState
from sessions_app.kernel.transactions import open_start_intent
from sessions_app.models import ContinuityReceipt, TaskSession, Turn
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from tests.bench.figures import Figure
from tests.bench.latencies import drain, supervising
from tests.bench.world import World
from tests.real_agents.homes import RealAgent, codex_acp
from tests.real_agents.model_server import running_model
from tests.services import ACPX, CODEX, NODE
from tests.waiting import eventually

RESUME_LIMIT: Final = 1.5
"""As a multiple of the agent's own start."""
ACPX_LIMIT: Final = 0.5
PATIENCE: Final = 240.0
POLL_INTERVAL: Final = 0.05
"""Seconds between checks, in case a wake-up is lost."""
WORD: Final = "remember the word heron, answer ok"
QUESTION: Final = "what was the word?"


@dataclass
class Times:
    """Seconds of every round."""

    bare: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    prompted: list[float] = field(default_factory=list)
    acpx: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)


def of_a_killed_agent(world: World, rounds: int, *, limited: bool) -> list[Figure]:
    """Measure ``rounds`` rounds; figures are medians."""
    with running_model() as model, supervising():
        ours = KandevSession(world, codex_acp(world.home / "codex-home", model.url))
        theirs = AcpxSession(world.home / "acpx", codex_acp(world.home / "acpx-home", model.url))
        try:
            times = _measure(ours, theirs, rounds)
        finally:
            theirs.kill()
            world.stop(ours.session)
    bare, acpx = "its spawn + initialize + load", "acpx, owner and agent killed"
    median = statistics.median
    return [
        _figure("codex-acp killed: resumed", times.resumed, bare, times.bare, RESUME_LIMIT if limited else None),
        _figure("codex-acp killed: prompt answered", times.prompted, acpx, times.acpx, ACPX_LIMIT if limited else None),
        Figure("codex-acp and agentctl killed: resumed", median(times.cold), bare, median(times.bare)),
    ]


def _figure(row: str, seconds: list[float], floor: str, beside: list[float], limit: float | None) -> Figure:
    return Figure(row, statistics.median(seconds), floor, statistics.median(beside), limit=limit)


def _measure(ours: KandevSession, theirs: AcpxSession, rounds: int) -> Times:
    times = Times()
    for _ in range(rounds):
        ours.kill_agent()
        times.bare.append(ours.bare_start())
        times.resumed.append(ours.resume())
        ours.kill_agent()
        times.prompted.append(ours.prompt())
        theirs.kill()
        times.acpx.append(theirs.prompt())
        ours.kill_all()
        times.cold.append(ours.resume())
    return times


class KandevSession:
    """One session of a published agent under a real supervisor; it is resumed only on request.

    ``tells``: whether a new conversation is told the history.
    """

    def __init__(self, world: World, agent: RealAgent, agent_type: str = "codex", *, tells: bool = False):
        world.empty()
        profile = AgentProfile.objects.create(
            name=agent_type,
            agent_type=agent_type,
            command=list(agent.argv),
            env=dict(agent.env),
            history_context_injection=tells or None,
        )
        task = world.task("Resumed")
        task.save()
        session = tasks.create_session(world.user, task, profile, world.executor, prompt=WORD, policy="manual")
        self.agent, self.user, self.id = agent, world.user, session.id
        eventually(self._turns_over, timeout=PATIENCE, describe="the first turn has ended")

    @property
    def session(self) -> TaskSession:
        """Return the current row."""
        return TaskSession.objects.get(id=self.id)

    @property
    def execution(self) -> ExecutorRunning:
        """Return the current execution."""
        return ExecutorRunning.objects.get(session_id=self.id)

    def _turns_over(self) -> bool:
        runs = Turn.objects.filter(session_id=self.id)
        return runs.exists() and not runs.filter(ended_at=None).exists()

    def completed_turns(self) -> int:
        """Return how many turns were completed."""
        return Turn.objects.filter(session_id=self.id, state="completed").count()

    def waits_for_a_choice(self) -> bool:
        """Return whether the agent has lost its conversation, and a user has to say how to continue."""
        return self.session.error_code == "token_rejected" and open_start_intent(self.session) is None

    def kill_agent(self) -> None:
        """Kill the agent alone with SIGKILL, found by its programs; its agentctl continues."""
        agents = [one for one in self._processes() if _program(one.pid) in (NODE.resolve(), CODEX.resolve())]
        assert agents, "no agent runs"
        identity.kill_all(agents, 10)
        self._wait_for_exit()

    def kill_all(self) -> None:
        """Kill agentctl, guard and agent with SIGKILL."""
        identity.kill_all(self._processes(), 10)
        eventually(
            lambda: self.execution.status == "stopped",
            timeout=PATIENCE,
            describe="the row says that the agent has stopped",
        )
        self._wait_for_exit()

    def _processes(self) -> list[identity.ProcessIdentity]:
        return identity.find_marked(str(self.execution.id))

    def _wait_for_exit(self) -> None:
        eventually(
            lambda: not self.session.launch_id, timeout=PATIENCE, describe="the log says that the agent has stopped"
        )

    def bare_start(self) -> float:
        """Return the seconds of the agent's own spawn, ``initialize`` and ``session/load`` of this conversation."""
        execution = self.execution
        return bare_start(self.agent.argv, self.agent.env, execution.workspace_path, execution.resume_token)

    def resume(self) -> float:
        """Return the seconds from a user's *resume* until the agent has its conversation again."""
        receipts = ContinuityReceipt.objects.filter(session_id=self.id, kind="loaded")
        loaded = receipts.filter(session__state=SessionState.WAITING_FOR_INPUT)
        before = receipts.count()
        began = time.perf_counter()
        intents.request_resume(self.id, self.user)
        wait_for_commit(lambda: loaded.count() > before)
        return time.perf_counter() - began

    def prompt(self) -> float:
        """Return the seconds from a prompt without a running agent until its answer is in the log."""
        before = self.completed_turns()
        began = time.perf_counter()
        prompts.queue_prompt(self.id, uuid.uuid4().hex, QUESTION, self.user)
        wait_for_commit(lambda: self.completed_turns() > before)
        return time.perf_counter() - began


class AcpxSession:
    """The same agent, managed by acpx."""

    def __init__(self, workspace: Path, agent: RealAgent):
        workspace.mkdir()
        self.mark = uuid.uuid4().hex
        self.env = {**agent.env, EXECUTION_MARKER: self.mark}
        self.argv = [str(NODE), str(ACPX), "--agent", shlex.join(agent.argv), "--cwd", str(workspace), "--ttl", "0"]
        self.workspace = workspace
        self._run("sessions", "new")
        self._run(WORD)

    def kill(self) -> None:
        """Kill the owner of its queue and the agent with SIGKILL."""
        identity.kill_all(identity.find_marked(self.mark), 10)

    def prompt(self) -> float:
        """Return the seconds of a prompt, from the start of the command to its end."""
        began = time.perf_counter()
        assert "heron" in self._run(QUESTION)
        return time.perf_counter() - began

    def _run(self, *words: str) -> str:
        argv = [*self.argv, *words]
        options: dict[str, Any] = {"env": self.env, "cwd": self.workspace, "stdin": subprocess.DEVNULL}
        done = subprocess.run(argv, **options, capture_output=True, text=True, timeout=PATIENCE, check=True)
        return str(done.stdout)


def bare_start(argv: Sequence[str], environment: Mapping[str, str], cwd: str, token: str) -> float:
    """Return the seconds of an agent's own spawn, ``initialize`` and ``session/load``, over bare pipes."""
    began = time.perf_counter()
    with subprocess.Popen(
        argv,
        env=dict(environment),
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _call(process, 1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
            _call(process, 2, "session/load", {"sessionId": token, "cwd": cwd, "mcpServers": []})
            return time.perf_counter() - began
        finally:
            process.kill()


def _call(process: subprocess.Popen[bytes], number: int, method: str, params: dict[str, Any]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    for line in process.stdout:
        document = json.loads(line)
        if document.get("id") == number:
            assert "result" in document, document
            return
    raise AssertionError(f"the agent ended before it answered {method}")


def _program(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/exe").readlink()
    except OSError:
        return None


def wait_for_commit(is_there: Callable[[], bool]) -> None:
    """Check the condition after each commit until it holds, so that polling does not show in the figure."""
    deadline, listener = time.monotonic() + PATIENCE, wakeups.open_listener()
    try:
        while not is_there():
            assert time.monotonic() < deadline, "the agent was not resumed in time"
            select.select([listener], [], [], POLL_INTERVAL)
            drain(listener)
    finally:
        wakeups.close_listener(listener)
