"""The turns of one agent: a prompt is accepted once, delivered at most once, and its turn ends once.

``prompt.accepted`` is on disk before the driver gets the text. A turn that ends because the agent exits has no end
line of its own: ``agent.exited`` names it. For what the agent's driver reports, see ``driver_host``; for the agent's
requests during its turn, ``permissions``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.agentctl.drivers import CONVERSATION_LOST, Driver, SupportsOwnWork, TurnFailed
from executors_app.agentctl.drivers.failures import BLANK_STOP_REASON
from executors_app.agentctl.drivers.prompt_content import describe_attachments
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.state_files import DurableStore
from executors_app.machine import crash_points
from executors_app.wire.protocol import AGENT_TURN_PREFIX, ActiveTurn, ApiError, Code, JournalKind

logger = logging.getLogger(__name__)

_LAST_OUTPUT_TIMEOUT: Final = 10.0
"""Seconds to wait for the exit of an agent whose output has ended."""
_CANCEL_LIMIT: Final = 5.0
_FAILURE_TEXT_LIMIT: Final = 600
"""Characters of the longest text that may be a failure of the agent."""
_LATE_OUTPUT: Final = 2.0
"""Seconds to wait after the agent's answer for the output of a turn that had none, and at most for the rest of any."""
_LATE_QUIET: Final = 0.1
"""Seconds without output after which the output of a turn is over."""
_NOTHING_FOLLOWS: Final = frozenset({"cancelled", "refusal"})
"""Stop reasons after which no output is waited for."""
_NO_ROOM: Final = (
    "The disk that stores this agent's output is full, so the turn was stopped. Nothing that was shown is lost."
    " Free some space on that disk, then send the prompt again."
)


@dataclass(slots=True)
class _Turn:
    message_id: str
    since: str
    driver: Driver
    process: int | None
    """The agent's pid when the prompt arrived; None if it has no process between turns, or none at all."""
    prompt_kind: str = "user"
    sent_to_driver: bool = False
    has_failed: bool = False
    """Its failure is in the journal, although the agent may still be working."""
    was_delivered: bool = False
    output: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the agent has produced output."""
    text: str = ""
    """Its text so far, but no more than is needed to recognise a failure that is told as text."""
    has_acted: bool = False
    """Whether the agent has reported more than texts: a tool call, a plan, or a request."""
    more_output: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each further output."""
    cancel_requested: bool = False
    is_interrupted: bool = False
    """Whether Kandev has cancelled a request of the agent or stops it, so that the agent may end its turn for that."""
    stop_reason: str | None = None
    """Why the agent has ended it; None until it has answered."""
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Turns:
    """At most one active turn, and the ids of all prompts ever accepted."""

    def __init__(self, journal: Journal, memory: DurableStore, permissions: Permissions):
        self._journal, self._store, self._permissions = journal, memory, permissions
        self._turn: _Turn | None = None
        self._accepting = asyncio.Lock()
        self._accepted: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()
        self.driver: Driver | None = None
        """The driver of the agent, from its start on until it ends; ``AgentLifecycle`` sets it."""
        journal.on_full = self.stop_for_full_disk
        self.before_turn: Callable[[], Awaitable[None]] = _completed
        """Awaited before the driver gets a prompt; must not raise."""
        self.after_turn: Callable[[], None] = lambda: None
        """Called after every turn, however it ended."""
        self.was_steered: Callable[[str], bool] = lambda message_id: False
        """Whether the text of this id was handed to a running turn, or may have been: it is no prompt then."""
        self.on_conversation_lost: Callable[[str], None] = lambda code: None
        """Called after a turn which showed that the agent is not in its conversation, with the code of the failure."""

    @property
    def active_turn(self) -> ActiveTurn | None:
        """``agent.active_turn`` of ``GET /status``."""
        if self._turn:
            return {"message_id": self._turn.message_id, "since": self._turn.since}
        return None

    @property
    def message_id(self) -> str | None:
        """The message id of the active turn."""
        if self._turn:
            return self._turn.message_id
        return None

    @property
    def is_cancel_requested(self) -> bool:
        """Whether the active turn is being cancelled: the agent gets no more permissions."""
        return self._turn is not None and self._turn.cancel_requested

    def note_output(self, kind: str, text: str) -> None:
        """Record that the agent has produced output in this turn; ``text`` is empty for anything but text."""
        turn = self._turn
        if turn is None:
            return
        turn.output.set()
        turn.more_output.set()
        if kind == JournalKind.MESSAGE_AGENT:
            turn.text = (turn.text + text)[: _FAILURE_TEXT_LIMIT + 1]
        elif kind != JournalKind.MESSAGE_THOUGHT:
            turn.has_acted = True

    def note_request(self) -> None:
        """Record that the agent has asked for an answer in this turn."""
        if self._turn is not None:
            self._turn.has_acted = True

    def note_interruption(self) -> None:
        """Record that Kandev has cancelled a request of the agent in this turn, or stops the agent."""
        if self._turn is not None:
            self._turn.is_interrupted = True

    def mark_accepted(self, message_id: str) -> None:
        """Count a prompt as accepted because the journal has its line; raises OSError if that cannot be stored."""
        if self._store.get("prompt", message_id) is None:
            self._accepted.add(message_id)
            self._store.put("prompt", message_id, True)

    def has_accepted(self, message_id: str) -> bool:
        """Whether a prompt of this id was ever accepted."""
        return message_id in self._accepted or self._store.get("prompt", message_id) is not None

    def may_be_steered(self, message_id: str) -> bool:
        """Whether the agent works on this prompt, and may still take a text into its turn."""
        turn = self._turn
        if turn is None or turn.message_id != message_id or not turn.was_delivered:
            return False
        return turn.stop_reason is None and not turn.cancel_requested and not turn.has_failed

    # -- a prompt ----------------------------------------------------------------------------

    async def accept(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], prompt_kind: str
    ) -> dict[str, bool]:
        """Accept a prompt and start its turn; a known id changes nothing.

        Raises ApiError if no agent runs, another turn is active, or the journal is full.
        """
        async with self._accepting:
            if self.has_accepted(message_id) or self.was_steered(message_id):
                return {"accepted": True, "duplicate": True}
            driver = self.driver
            if driver is None:
                raise ApiError(Code.NOT_RUNNING, "no agent is running")
            if self._turn is not None:
                raise ApiError(Code.BUSY, "a turn is active", message_id=self._turn.message_id)
            if self._journal.is_full or self._journal.trouble:
                raise ApiError(
                    Code.JOURNAL_FULL, "the journal cannot take any lines now", trouble=self._journal.trouble
                )
            turn = self._turn = _Turn(message_id, datetime.now(UTC).isoformat(), driver, driver.pid, prompt_kind)
            self._accepted.add(message_id)
            accepted: dict[str, Any] = {"message_id": message_id, "text": text, "prompt_kind": prompt_kind}
            if attachments:
                accepted["attachments"] = describe_attachments(attachments)
            # First the journal, then the store, then the driver. After a crash before the journal line the
            # control plane sends the prompt again; after it, the line marks the prompt as accepted (see
            # ``mark_accepted``), so the agent never gets it twice.
            await self._journal.wait_until_durable(self._journal.append(JournalKind.PROMPT_ACCEPTED, **accepted))
            crash_points.reached("agentctl.prompt_journaled")
            self._store_flag("prompt", message_id)
            crash_points.reached("agentctl.prompt_accepted")
            if not turn.abandoned.is_set():  # the agent may have exited while the line was written
                running = self._run(driver, turn, text, attachments)
                turn.task = asyncio.create_task(running, name=f"turn {message_id}")
        return {"accepted": True, "duplicate": False}

    async def _run(self, driver: Driver, turn: _Turn, text: str, attachments: Sequence[Mapping[str, Any]]) -> None:
        await self.before_turn()
        kind, body = await self._outcome(driver, turn, text, attachments)
        if turn.abandoned.is_set():
            return  # ``agent.exited`` has ended this turn
        self._permissions.cancel_all("turn_cancelled")
        if not turn.has_failed:
            self._journal.append(kind, message_id=turn.message_id, **body)
        seq, self._turn = self._journal.last_seq, None
        self.after_turn()
        if (code := body.get("code")) in CONVERSATION_LOST:
            self.on_conversation_lost(str(code))
        await self._journal.wait_until_durable(seq)
        crash_points.reached("agentctl.turn_ended")

    async def _outcome(
        self, driver: Driver, turn: _Turn, text: str, attachments: Sequence[Mapping[str, Any]]
    ) -> tuple[JournalKind, dict[str, Any]]:
        cancelled = (JournalKind.TURN_CANCELLED, {"stop_reason": "cancelled"})
        if turn.cancel_requested:
            return cancelled  # during the snapshot before the turn: the agent never gets this prompt
        turn.sent_to_driver = True
        try:
            reason = await driver.prompt(
                turn.message_id, text, attachments, lambda: self._record_delivery(turn), turn.prompt_kind
            )
        except TurnFailed as error:
            await self._wait_for_agent_exit(driver, turn, error)
            body: dict[str, Any] = {"code": error.code, "message": error.message}
            if error.retry_after is not None:
                body["retry_after"] = error.retry_after
            failed = (JournalKind.TURN_FAILED, body)
        except Exception:
            logger.exception("the driver failed during a turn")
            failed = (JournalKind.TURN_FAILED, {"code": Code.INTERNAL_ERROR, "message": "the driver failed"})
        else:
            turn.stop_reason = reason
            if reason not in _NOTHING_FOLLOWS:
                await _wait_for_late_output(turn)
            return _answered_turn(turn, reason)
        return cancelled if turn.cancel_requested else failed

    async def _wait_for_agent_exit(self, driver: Driver, turn: _Turn, error: TurnFailed) -> None:
        """If the turn failed because the agent exits, wait until that exit is recorded: it ends the turn."""
        had_one = turn.process is not None or error.code == Code.NOT_RUNNING
        if (had_one and driver.pid is None) or error.code == Code.AGENT_EXITED:
            try:
                await asyncio.wait_for(turn.abandoned.wait(), _LAST_OUTPUT_TIMEOUT)
            except TimeoutError:
                logger.warning("the agent's output ended, but its process did not")

    def _record_delivery(self, turn: _Turn) -> None:
        if not turn.was_delivered:
            turn.was_delivered = True
            crash_points.reached("agentctl.prompt_handed_over")
            seq = self._journal.append(JournalKind.PROMPT_DELIVERED, message_id=turn.message_id)
            self._in_background(self._await_durable_delivery(seq))

    async def _await_durable_delivery(self, seq: int) -> None:
        await self._journal.wait_until_durable(seq)
        crash_points.reached("agentctl.prompt_delivered")

    # -- other ends of a turn ----------------------------------------------------------------

    async def cancel(self, message_id: str) -> dict[str, bool]:
        """Ask the agent to end this turn; ``cancelled`` is False if it is not the active one.

        The control plane also names turns that the agent began, which it alone knows: then the agent is asked to end
        whatever it does without a prompt. A repeated request gets the first answer, also after the turn has ended.
        """
        if self._store.get("cancel", message_id):
            return {"cancelled": True}
        turn = self._turn
        if turn is None and message_id.startswith(AGENT_TURN_PREFIX) and self.driver is not None:
            return await self._cancel_own_turn(self.driver, message_id)
        if turn is None or turn.message_id != message_id:
            return {"cancelled": False}
        first, turn.cancel_requested = not turn.cancel_requested, True
        # Stored before the agent is asked: after a crash, a repeated request gets the same answer.
        self._store_flag("cancel", message_id)
        crash_points.reached("agentctl.cancel_remembered")
        if first and turn.sent_to_driver:
            await _ask_to_cancel(turn.driver.cancel)
            crash_points.reached("agentctl.cancel_asked")
        self._permissions.cancel_all("turn_cancelled")
        return {"cancelled": True}

    async def _cancel_own_turn(self, driver: Driver, message_id: str) -> dict[str, bool]:
        """Ask the agent to end what it began without a prompt; see ``cancel``."""
        self._store_flag("cancel", message_id)
        crash_points.reached("agentctl.cancel_remembered")
        if isinstance(driver, SupportsOwnWork):
            await _ask_to_cancel(driver.cancel_own_work)
        crash_points.reached("agentctl.cancel_asked")
        self._permissions.cancel_all("turn_cancelled")
        return {"cancelled": True}

    def stop_for_full_disk(self) -> None:
        """Fail the active turn because the disk is full; later output is written once there is space."""
        turn = self._turn
        if turn is None or turn.has_failed:
            return
        turn.has_failed = turn.cancel_requested = True
        self._journal.append(JournalKind.TURN_FAILED, message_id=turn.message_id, code=Code.DISK_FULL, message=_NO_ROOM)
        self._permissions.cancel_all("turn_cancelled")
        if turn.sent_to_driver:
            self._in_background(_ask_to_cancel(turn.driver.cancel))

    def abandon_active_turn(self) -> str | None:
        """Drop the active turn because the agent has exited, and return its message id.

        A turn that the agent has answered is not interrupted by that: it ends as answered, and None is returned.
        """
        turn, self._turn = self._turn, None
        if turn is None:
            return None
        turn.abandoned.set()
        if turn.task is not None:
            turn.task.cancel()
        is_answered = turn.stop_reason is not None and not turn.has_failed
        if is_answered:
            kind, body = _answered_turn(turn, turn.stop_reason or BLANK_STOP_REASON)
            self._journal.append(kind, message_id=turn.message_id, **body)
        self.after_turn()
        if is_answered:
            return None
        return turn.message_id

    def _store_flag(self, topic: str, message_id: str) -> None:
        try:
            self._store.put(topic, message_id, True)
        except OSError as error:
            # The journal has it, or a repetition is harmless: no reason to fail the turn.
            logger.error("a %s could not be stored: %s", topic, error.strerror)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _answered_turn(turn: _Turn, reason: str) -> tuple[JournalKind, dict[str, Any]]:
    """Return kind and body of the line that ends a turn whose agent has answered with ``reason``."""
    # After a cancel, some agents end the turn as if nothing had happened.
    if reason != "cancelled" and not turn.cancel_requested:
        return JournalKind.TURN_COMPLETED, _completed_turn(turn, reason)
    body: dict[str, Any] = {"stop_reason": "cancelled", "agent_stop_reason": reason}
    if not turn.cancel_requested and not turn.is_interrupted:
        body["by_agent"] = True
    return JournalKind.TURN_CANCELLED, body


def _completed_turn(turn: _Turn, reason: str) -> dict[str, Any]:
    """Return the body of ``turn.completed``; ``only_text`` is all that the turn has produced if it is a short text."""
    body = {"stop_reason": reason, "output": turn.output.is_set()}
    if 0 < len(turn.text) <= _FAILURE_TEXT_LIMIT and not turn.has_acted:
        body["only_text"] = turn.text
    return body


async def _wait_for_late_output(turn: _Turn) -> None:
    """Wait for what some agents send after their answer: all of their output, or the rest of it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LATE_OUTPUT):
            await turn.output.wait()
            while await _has_more_output(turn):
                pass


async def _has_more_output(turn: _Turn) -> bool:
    """Wait for more output, and return False if there is none for a moment."""
    turn.more_output.clear()
    try:
        await asyncio.wait_for(turn.more_output.wait(), _LATE_QUIET)
    except TimeoutError:
        return False
    return True


async def _completed() -> None:
    """Return at once."""


async def _ask_to_cancel(cancel: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(_CANCEL_LIMIT):
            await cancel()
    except Exception:
        logger.exception("the agent did not accept the request to cancel")
