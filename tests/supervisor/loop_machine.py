"""A model of the real loop and database in which agents die, supervisors crash and users change their minds."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from django.utils import timezone

from executors_app.models import ExecutorRunning
from executors_app.wire.executions import Launched, Observation
from executors_app.wire.protocol import AgentState
from scripts.documents.examples import observed_alive
from sessions_app.board.services import tasks
from sessions_app.kernel.rules.states import ENDED_STATES
from sessions_app.models import Intent, IntentKind, Prompt, Task, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.recovery.sweep.sweep_pass import SweepScope, run_sweep
from sessions_app.starts import admission, agent_start, claims
from sessions_app.starts.outcomes import StartFailure, settle_intent, write_start_failure, write_stopped
from sessions_app.supervisor import leases
from sessions_app.supervisor.dispatcher import next_overtaking_intent, next_start_intent
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.recording_runtime import DEAD, UNKNOWN, RecordingRuntime
from tests.supervisor.rows import execution_of, fresh, make_session, make_task, make_user

BROKE = StartFailure("launch_failed", "It ended at once.", executor_failed=True)
ANSWER = {"outcome": "created", "resume_token": "conversation", "capabilities": {}}


class World:
    """Sessions, the agents that are really alive, and a supervisor that may be replaced by the next."""

    def __init__(self, runtime: RecordingRuntime, loop: asyncio.AbstractEventLoop):
        Task.objects.all().delete()
        runtime.sees.clear()
        self.runtime, self._loop = runtime, loop
        self.sessions: list[uuid.UUID] = []
        self.alive: dict[uuid.UUID, str] = {}
        """Launch ids of living agents, by session."""
        self.journals: dict[uuid.UUID, Journal] = {}
        self.turns: dict[uuid.UUID, str] = {}
        """Prompts that agents are working on, by session."""
        self.starts: Counter[uuid.UUID] = Counter()
        self.unknown: set[str] = set()
        self.blind = False
        self.registry = self._supervisor()

    def _supervisor(self) -> ExecutionRegistry:
        async def make() -> ExecutionRegistry:
            return ExecutionRegistry()

        return self._loop.run_until_complete(make())

    def row(self, key: uuid.UUID) -> TaskSession:
        """Return the current row of a session."""
        return TaskSession.objects.select_related("task", "executor").get(id=key)

    def is_wanted(self, key: uuid.UUID) -> bool:
        """Return whether the session should run."""
        row = self.row(key)
        return row.desired_state == "running" and not row.task.is_over and row.state not in ENDED_STATES

    # --- users ---

    def make(self, team: int) -> uuid.UUID:
        """Create a session with an ordered start; return its id."""
        session = make_session("do it", task=make_task(title=f"Task {team}"), runtime=self.runtime.name)
        self.sessions.append(session.id)
        self.journals[session.id] = Journal()
        return session.id

    def archive(self, key: uuid.UUID) -> None:
        """Archive the session's task."""
        tasks.archive_task(self.row(key).task, make_user())

    # --- the world ---

    def kill_agent(self, key: uuid.UUID) -> None:
        """Kill the session's agent and agentctl."""
        self.alive.pop(key, None)
        self.turns.pop(key, None)
        self.registry.streams.pop(key, None)

    def time_passes(self) -> None:
        """Make every deadline due, and let dead supervisors' leases expire."""
        past = timezone.now() - timedelta(seconds=1)
        TaskSession.objects.filter(next_restart_at__isnull=False).update(next_restart_at=past)
        ExecutorRunning.objects.exclude(owner__in=("", self.registry.boot_id)).update(lease_expires_at=past)

    def crash(self) -> None:
        """Crash the supervisor; another one starts and finds its rows."""
        self.registry.streams.clear()
        self._close()
        self.registry, self.unknown = self._supervisor(), set()
        self.time_passes()
        self.sweep("boot")

    # --- the supervisor ---

    def sweep(self, trigger: Any, sessions: Any = (), *, admitted: bool = False) -> None:
        """Run one pass over all sessions or some."""
        for key in self.sessions:
            self.runtime.sees[str(key)] = self._seen(key)
            if key in self.alive:
                self._attach(key)
        scope = SweepScope(trigger, sessions=sessions, admitted=admitted)
        self._loop.run_until_complete(run_sweep(self.registry, scope, self.unknown))

    def _seen(self, key: uuid.UUID) -> Observation:
        if self.blind:
            return UNKNOWN
        state = AgentState.WORKING if key in self.turns else AgentState.IDLE
        return observed_alive(state) if key in self.alive else DEAD

    def _attach(self, key: uuid.UUID) -> None:
        """Attach as the registry does, without a socket: take the lease and record a living stream."""
        if key in self.registry.streams:
            return
        lease = leases.acquire_lease(execution_of(self.row(key)).id, self.registry.boot_id)
        if lease is not None:
            stub: Any = SimpleNamespace(ended=False, lease=lease, session_id=key)
            self.registry.streams[key] = stub

    def admit(self) -> None:
        """Admit the next waiting starts, as the loop does."""
        picked = admission.load_next_starts(self.registry.boot_id, self.registry.start_slots)
        if picked:
            self.sweep("reconcile", picked, admitted=True)
            admission.leave_start_queue(
                set(picked) - set(TaskSession.objects.filter(start_rank=None).values_list("id", flat=True))
            )

    def carry_out(self, key: uuid.UUID, end: str) -> None:
        """Carry out a session's next intent; ``end`` is *works*, *breaks*, or *crash* of the supervisor."""
        overtaking = next_overtaking_intent(key)
        if overtaking is not None:
            self._stop(key, overtaking)
            return
        order = next_start_intent(key)
        if order is None:
            return
        held = self.registry.streams.get(key)
        plan = claims.claim_start(
            key,
            order,
            self.registry.boot_id,
            running_launch_id=self.alive.get(key),
            held_lease=held.lease if held else None,
        )
        if plan is None:
            self._undo_lost_start(key, order)
            return
        wanted = self.row(key)
        assert wanted.desired_state == "running"
        assert not wanted.task.is_over
        assert wanted.state not in ENDED_STATES
        if end == "crash":
            self.crash()
        elif end == "breaks":
            write_start_failure(key, order, plan.lease, BROKE)
        else:
            self._starts(key, plan)

    def _starts(self, key: uuid.UUID, plan: claims.StartClaim) -> None:
        assert key not in self.alive, "two agents would run at once"
        self.starts[key] += 1
        runtime: dict[str, Any] = {
            "workspace_path": "/",
            "worktree_id": "w",
            "worktree_path": "/",
            "worktree_branch": "b",
        }
        if not claims.write_launch(plan, Launched(url="http://127.0.0.1:9", pid=1, boot_id="b", **runtime)):
            self._undo_lost_start(key, plan.intent_id)
            return
        order = agent_start.prepare_agent_start(plan, plan.lease, found=None)
        if order is None:
            return
        known = agent_start.load_conversation_facts(key)
        if agent_start.write_agent_started(plan, plan.lease, order, ANSWER, known):
            self.alive[key] = str(plan.intent_id)
            self._attach(key)

    def _undo_lost_start(self, key: uuid.UUID, order: uuid.UUID) -> None:
        if claims.has_lost_to_stop(key, order):
            self.kill_agent(key)
            claims.settle_lost_start(key, order)

    def _stop(self, key: uuid.UUID, order: Intent) -> None:
        if order.kind in (IntentKind.STOP, IntentKind.CLOSE):
            lease = leases.acquire_lease(execution_of(self.row(key)).id, self.registry.boot_id)
            if lease is None:
                return
            self.kill_agent(key)
            write_stopped(key, lease, "stopped", order.payload.get("as", ""))
        settle_intent(order.id, "done")

    def turn(self, key: uuid.UUID, *, ends: bool) -> None:
        """Let the agent take its next prompt, or end its current turn."""
        held = self.registry.streams.get(key)
        if held is None or key not in self.alive or fresh(self.row(key)).launch_id != self.alive[key]:
            return
        journal = self.journals[key]
        if key in self.turns and ends:
            ingest(self.row(key), [journal.completes(self.turns.pop(key))], lease=held.lease)
        elif key not in self.turns:
            prompt = Prompt.objects.filter(session_id=key, state="queued").order_by("id").first()
            if prompt is not None:
                Prompt.objects.filter(id=prompt.id).update(state="sending")
                self.turns[key] = prompt.message_id
                ingest(self.row(key), journal.turn_begins(prompt.message_id, prompt.text), lease=held.lease)

    # --- the end ---

    def _close(self) -> None:
        self.registry.writer.close()
        self.registry.database.close()

    def settle(self, rounds: int = 40) -> None:
        """Repair everything, then let all parts run until each session is in its desired state."""
        self.blind = False
        for _ in range(rounds):
            if all((key in self.alive) == self.is_wanted(key) for key in self.sessions):
                return
            self.time_passes()
            self.sweep("reconcile")
            self.admit()
            for key in self.sessions:
                self.carry_out(key, "works")
                self.turn(key, ends=True)

    def close(self) -> None:
        """End the last supervisor."""
        self._close()


def prompt(key: uuid.UUID, number: int) -> None:
    """Queue another prompt."""
    prompts.queue_prompt(key, f"user {number}", "go on", make_user())
