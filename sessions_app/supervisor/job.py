"""What a job of the supervisor is, and what the supervisor offers its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from sessions_app.recovery.recheck_queue import RecheckQueue
from sessions_app.recovery.sweep.sweep_pass import SweepRun, SweepScope
from sessions_app.stream.stream_news import News
from sessions_app.supervisor.change_counter import Signal
from sessions_app.supervisor.dispatcher import Dispatcher
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from sessions_app.supervisor.execution_stream import ExecutionStream


class Supervisor(Protocol):
    """What a supervisor offers its jobs."""

    registry: ExecutionRegistry
    dispatcher: Dispatcher
    """Carries out intents and prompts; ``announce_work`` says that there may be some."""
    rechecks: RecheckQueue
    """Sessions that need a sweep of their own at once."""
    database_changed: Signal
    """Sent after a change of the database, once its intents have been dispatched."""
    unknown: set[str]
    """Executions that the last sweep could not observe."""

    async def sweep(self, scope: SweepScope) -> SweepRun:
        """Sweep once and store the result."""


class Job:
    """Something that a supervisor repeats until it stops. It keeps its own state and closes it.

    Its steps wait themselves until the next one is due. A step that fails is tried again, with back-off.
    """

    name: ClassVar[str]
    """Appears as the cause in logs and events."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.registry = supervisor.registry

    def is_enabled(self) -> bool:
        """Whether it runs; a job that is switched off costs nothing."""
        return True

    async def prepare(self) -> None:
        """Do what has to be done before this supervisor claims anything."""

    async def run_step(self) -> None:
        """Take one step, and wait until the next one is due."""
        raise NotImplementedError

    def handle_news(self, stream: ExecutionStream, news: Sequence[News]) -> None:
        """React to lines that a stream has committed; may neither wait nor raise."""

    async def renew_leases(self) -> None:
        """Renew leases of its own, together with the supervisor's."""

    async def stop(self) -> None:
        """Stop what it has begun, and release its leases. No step runs any more."""

    async def finish(self) -> None:
        """Do what is left to do once all jobs have stopped and no intent is carried out any more."""
