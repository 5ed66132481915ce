"""The loop keeps its guarantees with crashes at any time, and all wanted sessions run in the end."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import Counter
from typing import Any

import pytest
from django.conf import settings as deployment
from hypothesis import HealthCheck, Phase
from hypothesis import settings as walk
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sessions_app.kernel.rules.states import ENDED_STATES
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.models import Intent, Prompt, SessionEvent, TaskSession
from sessions_app.sessions.services import intents
from tests.supervisor import loop_machine
from tests.supervisor.loop_machine import World
from tests.supervisor.recording_runtime import RecordingRuntime
from tests.supervisor.rows import make_user

pytestmark = pytest.mark.django_db(transaction=True)
AT_ONCE = 2
SESSIONS = 4

WALK = walk(
    max_examples=6,
    stateful_step_count=20,
    derandomize=True,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""The same steps each time; to shrink a failure, add ``Phase.shrink``."""

number = st.integers(0, SESSIONS - 1)


class Loop(RuleBasedStateMachine):
    """The state machine: each rule is an event that may happen at any time."""

    runtime: RecordingRuntime

    @initialize()
    def begin(self) -> None:
        """Create four sessions of three tasks, all with an ordered start."""
        self.loop = asyncio.new_event_loop()
        self.world = World(self.runtime, self.loop)
        self.prompt_count = 0
        for session in range(SESSIONS):
            self.world.make(session % 3)

    def key(self, index: int) -> uuid.UUID:
        """Return the id of a session."""
        return self.world.sessions[index]

    @rule(index=number)
    def user_prompts(self, index: int) -> None:
        """Queue a prompt, which may be refused."""
        self.prompt_count += 1
        with contextlib.suppress(SessionsError):
            loop_machine.prompt(self.key(index), self.prompt_count)

    @rule(index=number)
    def user_stops(self, index: int) -> None:
        """Stop a session, which may be resumed later."""
        intents.request_stop(self.key(index), make_user())

    @rule(index=number)
    def user_resumes(self, index: int) -> None:
        """Resume a session, which may be refused."""
        with contextlib.suppress(SessionsError):
            intents.request_resume(self.key(index), make_user())

    @rule(index=number)
    def user_archives_task(self, index: int) -> None:
        """Archive a task, which is final."""
        if index == SESSIONS - 1:
            self.world.archive(self.key(index))

    @rule(index=number)
    def agent_dies(self, index: int) -> None:
        """Kill an agent with all its processes."""
        self.world.kill_agent(self.key(index))

    @rule(blind=st.booleans())
    def machine_becomes_unreachable(self, blind: bool) -> None:
        """Make the machine of all agents unreachable, or reachable again."""
        self.world.blind = blind

    @rule()
    def time_passes(self) -> None:
        """Let every deadline pass."""
        self.world.time_passes()

    @rule()
    def supervisor_crashes(self) -> None:
        """Crash the supervisor; another one starts."""
        self.world.crash()

    @rule()
    def sweep_runs(self) -> None:
        """Run a full sweep."""
        self.world.sweep("reconcile")

    @rule()
    def starts_are_admitted(self) -> None:
        """Admit the next waiting starts."""
        self.world.admit()

    @rule(index=number, end=st.sampled_from(["works", "works", "breaks", "crash"]))
    def intent_is_carried_out(self, index: int, end: str) -> None:
        """Carry out an intent, let it fail, or crash in the middle."""
        self.world.carry_out(self.key(index), end)

    @rule(index=number, ends=st.booleans())
    def agent_works(self, index: int, ends: bool) -> None:
        """Let an agent take a prompt or end its turn."""
        self.world.turn(self.key(index), ends=ends)

    @invariant()
    def automatic_starts_are_limited(self) -> None:
        """Check the limit of automatic starts."""
        if hasattr(self, "world"):
            mine = Intent.objects.filter(kind="start", done_at=None, by=None)
            assert mine.count() <= AT_ONCE
            per_session = Counter(Intent.objects.filter(kind="start", done_at=None).values_list("session", flat=True))
            assert set(per_session.values()) <= {1}

    @invariant()
    def only_wanted_sessions_wait(self) -> None:
        """Check that no session waits for a start that is unwanted or already ordered."""
        waiting = TaskSession.objects.filter(start_rank__isnull=False)
        assert not waiting.exclude(desired_state="running").exists()
        assert not waiting.filter(task__archived_at__isnull=False).exists()
        assert not waiting.filter(state__in=ENDED_STATES).exists()

    @invariant()
    def interruptions_and_continuations_are_recorded_once(self) -> None:
        """Check that each interruption and continuation is recorded once."""
        ends = SessionEvent.objects.filter(name="session.run.interrupted").values_list("payload__run_id", flat=True)
        assert len(set(ends)) == len(ends)
        rows = Prompt.objects.filter(kind="continue").values_list("session_id", "message_id")
        assert len(set(rows)) == len(rows)

    @invariant()
    def failed_starts_are_limited(self) -> None:
        """Check that no session has more failed starts than allowed."""
        assert not TaskSession.objects.filter(start_attempts__gt=deployment.KANDEV_MAX_RESTARTS).exists()

    def teardown(self) -> None:
        """Let the world settle: exactly the wanted sessions run."""
        if not hasattr(self, "world"):
            return
        self.world.settle()
        for key in self.world.sessions:
            row = self.world.row(key)
            row_state = (row.state, row.error_code, row.desired_state, row.start_rank)
            assert (key in self.world.alive) == self.world.is_wanted(key), row_state
        self.world.close()
        self.loop.close()


def test_loop_keeps_its_guarantees_in_any_order_of_crashes(runtime: RecordingRuntime, settings: Any) -> None:
    settings.KANDEV_MAX_STARTS_PER_PASS = AT_ONCE
    Loop.runtime = runtime
    run_state_machine_as_test(Loop, settings=WALK)
