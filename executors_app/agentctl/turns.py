"""The turns of one agent: a prompt is accepted once, delivered at most once, and its turn ends once.

``prompt.accepted`` is on the disk before the driver gets the text (rule 13); a turn that the agent's
end breaks has no line of its own: ``agent.exited`` names it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from executors_app import crash_points
from executors_app.agentctl.drivers import CONVERSATION_LOST, Driver, TurnFailed
from executors_app.agentctl.journal.journal import Journal
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.protocol import ActiveTurn, ApiError, Code, JournalKind
from executors_app.agentctl.state_files import DurableStore

logger = logging.getLogger(__name__)

_LAST_OUTPUT_TIMEOUT: Final = 10.0
"""Seconds between the news that the agent broke off and the news that its process is gone."""
_CANCEL_LIMIT: Final = 5.0
_NO_ROOM: Final = (
    "The disk that keeps what this agent says is full, so the turn was stopped. Nothing that was shown is lost."
    " Make room on that disk, then send the prompt again."
)


@dataclass(slots=True)
class _Turn:
    message_id: str
    since: str
    driver: Driver
    process: int | None
    """Of the agent when the prompt came: None where it has no process between turns, or none at all."""
    handed_over: bool = False
    has_failed: bool = False
    """Its end is in the journal, though its agent may not know."""
    delivered: bool = False
    has_output: bool = False
    cancel_asked: bool = False
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Turns:
    """At most one active turn, and the ids of all prompts ever accepted."""

    def __init__(self, journal: Journal, memory: DurableStore, permissions: Permissions):
        self._journal, self._memory, self._permissions = journal, memory, permissions
        self._turn: _Turn | None = None
        self._accepting = asyncio.Lock()
        self._accepted: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        journal.on_full = self.stop_for_full_disk
        self.before_turn: Callable[[], Awaitable[None]] = _completed
        """Awaited before the driver gets a prompt; must not raise."""
        self.after_turn: Callable[[], None] = lambda: None
        """Called once a turn has ended, however it ended."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called after a turn that showed that the agent is not in its conversation."""

    @property
    def active(self) -> ActiveTurn | None:
        """``agent.active_turn`` of ``GET /status``."""
        return {"message_id": self._turn.message_id, "since": self._turn.since} if self._turn else None

    @property
    def message_id(self) -> str | None:
        """Of the active turn."""
        return self._turn.message_id if self._turn else None

    @property
    def cancel_asked(self) -> bool:
        """The active turn is to end: its agent gets no permission any more."""
        return self._turn is not None and self._turn.cancel_asked

    def note_output(self) -> None:
        """The agent has said or done something."""
        if self._turn is not None:
            self._turn.has_output = True

    def remember(self, message_id: str) -> None:
        """Count a prompt as accepted whose line the journal has; OSError if the disk does not take it."""
        if self._memory.recall("prompt", message_id) is None:
            self._accepted.add(message_id)
            self._memory.keep("prompt", message_id, True)

    # -- a prompt ----------------------------------------------------------------------------

    async def accept(
        self,
        driver_now: Callable[[], Driver],
        message_id: str,
        text: str,
        attachments: Sequence[Mapping[str, Any]],
        prompt_kind: str,
    ) -> dict[str, bool]:
        """Take a prompt on and begin its turn; a known id does nothing. Refused: not running, busy, journal full."""
        async with self._accepting:
            if message_id in self._accepted or self._memory.recall("prompt", message_id) is not None:
                return {"accepted": True, "duplicate": True}
            driver = driver_now()
            if self._turn is not None:
                raise ApiError(Code.BUSY, "a turn is active", message_id=self._turn.message_id)
            if self._journal.full or self._journal.trouble:
                raise ApiError(Code.JOURNAL_FULL, "the journal takes nothing in now", trouble=self._journal.trouble)
            turn = self._turn = _Turn(message_id, datetime.now(UTC).isoformat(), driver, driver.pid)
            self._accepted.add(message_id)
            accepted = {"message_id": message_id, "text": text, "prompt_kind": prompt_kind}
            await self._journal.durable(self._journal.append(JournalKind.PROMPT_ACCEPTED, **accepted))
            crash_points.reached("agentctl.prompt_journaled")
            self._keep("prompt", message_id)
            crash_points.reached("agentctl.prompt_accepted")
            if not turn.broken.is_set():
                turn.task = asyncio.create_task(self._run(driver, turn, text, attachments), name=f"turn {message_id}")
        return {"accepted": True, "duplicate": False}

    async def _run(self, driver: Driver, turn: _Turn, text: str, attachments: Sequence[Mapping[str, Any]]) -> None:
        await self.before_turn()
        kind, body = await self._outcome(driver, turn, text, attachments)
        if turn.broken.is_set():
            return
        self._permissions.cancel_all("turn_cancelled")
        if not turn.has_failed:
            self._journal.append(kind, message_id=turn.message_id, **body)
        seq, self._turn = self._journal.last_seq, None
        self.after_turn()
        if body.get("code") in CONVERSATION_LOST:
            self.on_lost()
        await self._journal.durable(seq)
        crash_points.reached("agentctl.turn_ended")

    async def _outcome(
        self, driver: Driver, turn: _Turn, text: str, attachments: Sequence[Mapping[str, Any]]
    ) -> tuple[JournalKind, dict[str, Any]]:
        cancelled = (JournalKind.TURN_CANCELLED, {"stop_reason": "cancelled"})
        if turn.cancel_asked:
            return cancelled
        turn.handed_over = True
        try:
            reason = await driver.prompt(turn.message_id, text, attachments, lambda: self._delivered(turn))
        except TurnFailed as error:
            await self._unless_gone(driver, turn, error)
            told = {} if error.retry_after is None else {"retry_after": error.retry_after}
            failed = (JournalKind.TURN_FAILED, {"code": error.code, "message": error.message, **told})
        except Exception:
            logger.exception("the driver broke in a turn")
            failed = (JournalKind.TURN_FAILED, {"code": Code.INTERNAL_ERROR, "message": "the driver broke"})
        else:
            return (
                cancelled
                if reason == "cancelled"
                else (
                    JournalKind.TURN_COMPLETED,
                    {"stop_reason": reason, "output": turn.has_output},
                )
            )
        return cancelled if turn.cancel_asked else failed

    async def _unless_gone(self, driver: Driver, turn: _Turn, error: TurnFailed) -> None:
        """Where the agent's end is what failed the turn, wait for that news."""
        had_one = turn.process is not None or error.code == Code.NOT_RUNNING
        if (had_one and driver.pid is None) or error.code == Code.AGENT_EXITED:
            try:
                await asyncio.wait_for(turn.broken.wait(), _LAST_OUTPUT_TIMEOUT)
            except TimeoutError:
                logger.warning("the agent broke off, yet its process did not end")

    def _delivered(self, turn: _Turn) -> None:
        if not turn.delivered:
            turn.delivered = True
            crash_points.reached("agentctl.prompt_handed_over")
            seq = self._journal.append(JournalKind.PROMPT_DELIVERED, message_id=turn.message_id)
            self._in_background(self._delivery_is_durable(seq))

    async def _delivery_is_durable(self, seq: int) -> None:
        await self._journal.durable(seq)
        crash_points.reached("agentctl.prompt_delivered")

    # -- other ends of a turn ----------------------------------------------------------------

    async def cancel(self, driver: Driver | None, message_id: str) -> dict[str, bool]:
        """Ask the agent to end exactly this turn; ``cancelled`` is False for any other."""
        if self._memory.recall("cancel", message_id):
            return {"cancelled": True}
        turn = self._turn
        if turn is None or turn.message_id != message_id:
            return {"cancelled": False}
        first, turn.cancel_asked = not turn.cancel_asked, True
        self._keep("cancel", message_id)
        crash_points.reached("agentctl.cancel_remembered")
        if first and driver is not None and turn.handed_over:
            await _ask_to_cancel(driver)
            crash_points.reached("agentctl.cancel_asked")
        self._permissions.cancel_all("turn_cancelled")
        return {"cancelled": True}

    def stop_for_full_disk(self) -> None:
        """The disk is full: the turn has failed, whatever its agent still says is kept once there is room."""
        turn = self._turn
        if turn is None or turn.has_failed:
            return
        turn.has_failed = turn.cancel_asked = True
        self._journal.append(JournalKind.TURN_FAILED, message_id=turn.message_id, code=Code.DISK_FULL, message=_NO_ROOM)
        self._permissions.cancel_all("turn_cancelled")
        if turn.handed_over:
            self._in_background(_ask_to_cancel(turn.driver))

    def break_active_turn(self) -> str | None:
        """The agent is gone: forget the active turn and return its message id."""
        turn, self._turn = self._turn, None
        if turn is None:
            return None
        turn.broken.set()
        if turn.task is not None:
            turn.task.cancel()
        self.after_turn()
        return turn.message_id

    def _keep(self, topic: str, message_id: str) -> None:
        try:
            self._memory.keep(topic, message_id, True)
        except OSError as error:
            # The journal has it, or it happens again harmlessly: no reason to let the turn go.
            logger.error("could not remember a %s on the disk: %s", topic, error.strerror)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _completed() -> None:
    """Nothing to wait for."""


async def _ask_to_cancel(driver: Driver) -> None:
    try:
        async with asyncio.timeout(_CANCEL_LIMIT):
            await driver.cancel()
    except Exception:
        logger.exception("the agent could not be asked to cancel")
