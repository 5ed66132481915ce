"""Texts for a turn that is running: each is handed to the agent at most once.

``steer.accepted`` is on disk before the driver gets the text, and one more line follows with the outcome: *delivered*,
*declined* if the agent certainly has not taken it, or *unknown*. Without that line it is unknown too: the process died
in between. Only a text that was declined may be handed over again, here or as a prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from executors_app.agentctl.drivers import Driver, SteeringRefused, SupportsSteering
from executors_app.agentctl.drivers.prompt_content import describe_attachments
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.state_files import DurableStore
from executors_app.agentctl.turns import Turns
from executors_app.machine import crash_points
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.protocol import ApiError, Code, JournalKind

logger = logging.getLogger(__name__)

_TOPIC: Final = "steer"
_ACCEPTED: Final = "accepted"
_DECLINED: Final = "declined"
_ANSWER_LIMIT: Final = 60.0
"""Seconds for the agent's answer; after that it is unknown whether it has taken the text."""
STATE_BY_LINE: Final[Mapping[str, str]] = {
    JournalKind.STEER_ACCEPTED: _ACCEPTED,
    JournalKind.STEER_DECLINED: _DECLINED,
}
"""What each line says of its text, for an agentctl that died before it could store that."""


class Steering:
    """The texts that were accepted for running turns, by message id."""

    def __init__(self, journal: Journal, store: DurableStore, turns: Turns):
        self._journal, self._store, self._turns = journal, store, turns
        self._open: dict[str, asyncio.Task[None] | None] = {}
        """The texts whose outcome is still due."""
        self.answer_limit = _ANSWER_LIMIT
        turns.was_steered = self.has_accepted

    def has_accepted(self, message_id: str) -> bool:
        """Whether the agent has, or may have, got the text of this id."""
        return message_id in self._open or self._store.get(_TOPIC, message_id) == _ACCEPTED

    def restore(self, states: Mapping[str, str]) -> None:
        """Store what the journal says of texts; raises OSError."""
        for message_id, state in states.items():
            if self._store.get(_TOPIC, message_id) != state:
                self._store.put(_TOPIC, message_id, state)

    async def accept(
        self,
        driver: Driver | None,
        message_id: str,
        turn_id: str,
        text: str,
        attachments: Sequence[Mapping[str, Any]],
    ) -> dict[str, bool]:
        """Accept a text for the turn of this prompt, and hand it over; a known id changes nothing.

        The outcome follows as a journal line. Raises ApiError if the agent takes no texts, this turn is not running,
        or the journal is full: then nothing was accepted.
        """
        if self.has_accepted(message_id) or self._turns.has_accepted(message_id):
            return {"accepted": True, "duplicate": True}
        if driver is None:
            raise ApiError(Code.NOT_RUNNING, "no agent is running")
        if not isinstance(driver, SupportsSteering) or not driver.steers:
            raise ApiError(Code.STEERING_UNSUPPORTED, "this agent takes no texts during a turn")
        if not self._turns.may_be_steered(turn_id):
            raise ApiError(Code.NO_TURN, "this turn is not running", message_id=turn_id)
        if self._journal.is_full or self._journal.trouble:
            raise ApiError(Code.JOURNAL_FULL, "the journal cannot take any lines now", trouble=self._journal.trouble)
        self._open[message_id] = None
        line: dict[str, Any] = {"message_id": message_id, "turn": turn_id, "text": text}
        if attachments:
            line["attachments"] = describe_attachments(attachments)
        # First the journal, then the store, then the driver, as with a prompt (``Turns.accept``).
        await self._journal.wait_until_durable(self._journal.append(JournalKind.STEER_ACCEPTED, **line))
        crash_points.reached("agentctl.steer_journaled")
        self._remember(message_id, _ACCEPTED)
        work = self._hand_over(driver, message_id, turn_id, text, attachments)
        task = self._open[message_id] = asyncio.create_task(work, name=f"steer {message_id}")
        task.add_done_callback(lambda _: self._open.pop(message_id, None))
        return {"accepted": True, "duplicate": False}

    async def _hand_over(
        self,
        driver: SupportsSteering,
        message_id: str,
        turn_id: str,
        text: str,
        attachments: Sequence[Mapping[str, Any]],
    ) -> None:
        kind, reason = await self._outcome(driver, turn_id, text, attachments)
        line = {"message_id": message_id, "turn": turn_id}
        if kind == JournalKind.STEER_DECLINED:
            # Before the line, after which the control plane may send it as a prompt.
            self._remember(message_id, _DECLINED)
            self._open.pop(message_id, None)
        if reason:
            line["reason"] = reason
        self._journal.append(kind, **line)
        crash_points.reached("agentctl.steer_settled")

    async def _outcome(
        self, driver: SupportsSteering, turn_id: str, text: str, attachments: Sequence[Mapping[str, Any]]
    ) -> tuple[JournalKind, str]:
        if not self._turns.may_be_steered(turn_id):  # it ended while the line was written
            return JournalKind.STEER_DECLINED, "the turn had ended"
        try:
            async with asyncio.timeout(self.answer_limit):
                await driver.steer(text, attachments, lambda: crash_points.reached("agentctl.steer_handed_over"))
        except SteeringRefused as error:
            return JournalKind.STEER_DECLINED, str(error)
        except TimeoutError:
            return JournalKind.STEER_UNKNOWN, f"the agent did not answer within {self.answer_limit:g} s"
        except Exception as error:  # noqa: BLE001  (whatever it is: the agent may have the text)
            logger.info("it is unknown whether the agent took a text: %r", error)
            return JournalKind.STEER_UNKNOWN, clean_text(str(error) or "the agent ended", REASON_LIMIT)
        return JournalKind.STEER_DELIVERED, ""

    def _remember(self, message_id: str, state: str) -> None:
        try:
            self._store.put(_TOPIC, message_id, state)
        except OSError as error:
            logger.error("the state of a text could not be stored: %s", error.strerror)  # the journal has it
