"""The loop with crashes at any time: its guarantees hold in any order of events, and everything is up at the end."""

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

from sessions_app.domain.states import ENDED_STATES
from sessions_app.models import Intent, Prompt, SessionEvent, TaskSession
from sessions_app.services import intents
from sessions_app.services.errors import SessionsError
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
    """Each rule is something that may happen at any time."""

    runtime: RecordingRuntime

    @initialize()
    def begin(self) -> None:
        """Create four sessions of three tasks, all to be started."""
        self.loop = asyncio.new_event_loop()
        self.world = World(self.runtime, self.loop)
        self.asked = 0
        for session in range(SESSIONS):
            self.world.make(session % 3)

    def key(self, index: int) -> uuid.UUID:
        """Return one of them."""
        return self.world.sessions[index]

    @rule(index=number)
    def somebody_prompts(self, index: int) -> None:
        """Queue a prompt, which may be refused."""
        self.asked += 1
        with contextlib.suppress(SessionsError):
            loop_machine.prompt(self.key(index), self.asked)

    @rule(index=number)
    def somebody_stops_it(self, index: int) -> None:
        """Stop a session, which may be wanted again later."""
        intents.request_stop(self.key(index), make_user())

    @rule(index=number)
    def somebody_tries_again(self, index: int) -> None:
        """Try again, which may be refused."""
        with contextlib.suppress(SessionsError):
            intents.request_resume(self.key(index), make_user())

    @rule(index=number)
    def its_task_is_archived(self, index: int) -> None:
        """Archive the task for good."""
        if index == SESSIONS - 1:
            self.world.archive(self.key(index))

    @rule(index=number)
    def its_agent_dies(self, index: int) -> None:
        """Kill the agent with all its processes."""
        self.world.dies(self.key(index))

    @rule(blind=st.booleans())
    def nothing_can_be_seen(self, blind: bool) -> None:
        """Make its machine unreachable, or reachable again."""
        self.world.blind = blind

    @rule()
    def time_passes(self) -> None:
        """Let every deadline pass."""
        self.world.time_passes()

    @rule()
    def the_supervisor_crashes(self) -> None:
        """Crash the supervisor; another one follows."""
        self.world.crash()

    @rule()
    def the_loop_looks(self) -> None:
        """Run a whole pass."""
        self.world.sweep("reconcile")

    @rule()
    def a_turn_comes(self) -> None:
        """Admit the next waiting starts."""
        self.world.admit()

    @rule(index=number, end=st.sampled_from(["works", "works", "breaks", "crash"]))
    def an_order_is_carried_out(self, index: int, end: str) -> None:
        """Carry out an intent, or begin it and crash."""
        self.world.carry_out(self.key(index), end)

    @rule(index=number, ends=st.booleans())
    def an_agent_works(self, index: int, ends: bool) -> None:
        """Let an agent take a prompt or end its turn."""
        self.world.turn(self.key(index), ends=ends)

    @invariant()
    def no_more_is_started_than_may_be(self) -> None:
        """Check the limit of automatic starts."""
        if hasattr(self, "world"):
            mine = Intent.objects.filter(kind="start", done_at=None, by=None)
            assert mine.count() <= AT_ONCE
            per_session = Counter(Intent.objects.filter(kind="start", done_at=None).values_list("session", flat=True))
            assert set(per_session.values()) <= {1}

    @invariant()
    def nobody_waits_who_is_not_wanted(self) -> None:
        """Check that no session waits that is unwanted or already ordered."""
        waiting = TaskSession.objects.filter(start_rank__isnull=False)
        assert not waiting.exclude(desired_state="running").exists()
        assert not waiting.filter(task__archived_at__isnull=False).exists()
        assert not waiting.filter(state__in=ENDED_STATES).exists()

    @invariant()
    def every_interruption_and_every_continuation_is_told_once(self) -> None:
        """Check that each is recorded once and the log has no gaps."""
        ends = SessionEvent.objects.filter(name="session.run.interrupted").values_list("payload__run_id", flat=True)
        assert len(set(ends)) == len(ends)
        told = Prompt.objects.filter(kind="continue").values_list("session_id", "message_id")
        assert len(set(told)) == len(told)

    @invariant()
    def tries_are_counted_and_bounded(self) -> None:
        """Check for at most five attempts without success."""
        assert not TaskSession.objects.filter(start_attempts__gt=deployment.KANDEV_MAX_RESTARTS).exists()

    def teardown(self) -> None:
        """Let the world recover: every wanted session is up or was given up, and no other is."""
        if not hasattr(self, "world"):
            return
        self.world.rest()
        for key in self.world.sessions:
            row = self.world.row(key)
            told = (row.state, row.error_code, row.desired_state, row.start_rank)
            assert (key in self.world.alive) == self.world.is_wanted(key), told
        self.world.close()
        self.loop.close()


def test_loop_keeps_its_guarantees_in_any_order_of_crashes(runtime: RecordingRuntime, settings: Any) -> None:
    settings.KANDEV_MAX_STARTS_PER_PASS = AT_ONCE
    Loop.runtime = runtime
    run_state_machine_as_test(Loop, settings=WALK)
