"""Permission requests of the agent: open until they are answered or cancelled, or the agent exits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from executors_app import crash_points
from executors_app.agentctl.journal.journal import Journal
from executors_app.agentctl.protocol import ApiError, Code, JournalKind, validation_error
from executors_app.agentctl.state_files import DurableStore


@dataclass(slots=True)
class _OpenPermission:
    body: dict[str, Any]
    decided: asyncio.Future[str | None]
    """The chosen option; None if the request was cancelled."""
    chosen: str | None = None
    """The first answer, set as soon as it arrives."""


class Permissions:
    """The open permission requests of one agent, and the answers to all earlier ones."""

    def __init__(self, journal: Journal, memory: DurableStore):
        self._journal, self._store = journal, memory
        self._open: dict[str, _OpenPermission] = {}

    def pending(self) -> list[dict[str, Any]]:
        """Return the bodies of unanswered ``permission.requested`` lines."""
        return [each.body for each in self._open.values() if each.chosen is None]

    async def ask(
        self, request: Mapping[str, Any], message_id: str | None, *, auto_approve: bool, refuse: bool = False
    ) -> str | None:
        """Wait for the answer to a permission request: the chosen option, or None if it was cancelled.

        ``auto_approve`` takes the first option that allows; ``refuse`` cancels the request at once.
        """
        options = list(request.get("options") or ())
        body = {
            "permission_id": str(uuid.uuid4()),
            "message_id": message_id,
            "tool_call": request.get("tool_call") or {},
            "options": options,
        }
        self._journal.append(JournalKind.PERMISSION_REQUESTED, **body)
        crash_points.reached("agentctl.permission_asked")
        if refuse:
            cancelled = {"permission_id": body["permission_id"], "reason": "turn_cancelled"}
            self._journal.append(JournalKind.PERMISSION_CANCELLED, **cancelled)
            return None
        if auto_approve and (option := _first_allow_option(options)) is not None:
            self._journal.append(JournalKind.PERMISSION_RESOLVED, permission_id=body["permission_id"], option_id=option)
            return option
        return await self._wait_for_answer(_OpenPermission(body, asyncio.get_running_loop().create_future()))

    async def _wait_for_answer(self, permission: _OpenPermission) -> str | None:
        permission_id = permission.body["permission_id"]
        self._open[permission_id] = permission
        try:
            return await permission.decided
        except asyncio.CancelledError:
            self._cancel(permission, "agent_gone")
            raise
        finally:
            self._open.pop(permission_id, None)

    async def answer(self, permission_id: str, option_id: str) -> dict[str, Any]:
        """Answer a request once; repeating the same answer returns the first result. Raises ApiError."""
        permission = self._open.get(permission_id)
        if permission is None:
            return self._recorded_answer(permission_id, option_id)
        if option_id not in {option.get("option_id") for option in permission.body["options"]}:
            raise validation_error("there is no such option", option_id=option_id)
        if permission.chosen not in (None, option_id):
            raise _already_answered_error(permission.chosen)
        result = {"option_id": option_id}
        if permission.chosen is None:
            permission.chosen = option_id
            seq = self._journal.append(
                JournalKind.PERMISSION_RESOLVED, permission_id=permission_id, option_id=option_id
            )
            # The agent gets the answer only after it is on disk: after a crash in between, nobody is asked
            # again about something that the agent has done already.
            await self._journal.wait_until_durable(seq)
            crash_points.reached("agentctl.answer_journaled")
            self._store.put("answer", permission_id, result)
            if not permission.decided.done():
                permission.decided.set_result(option_id)
        else:
            await self._journal.wait_until_durable(self._journal.last_seq)
        return result

    async def expire(self, permission_id: str) -> dict[str, Any]:
        """Cancel a request that nobody answered in time; raises ApiError if it was answered. May be repeated."""
        permission = self._open.get(permission_id)
        if permission is None:
            return self._recorded_answer(permission_id, None)
        if permission.chosen is not None:
            raise _already_answered_error(permission.chosen)
        result = {"option_id": None}
        self._cancel(permission, "timeout")
        await self._journal.wait_until_durable(self._journal.last_seq)
        self._store.put("answer", permission_id, result)
        return result

    def _recorded_answer(self, permission_id: str, option_id: str | None) -> dict[str, Any]:
        earlier: dict[str, Any] | None = self._store.get("answer", permission_id)
        if earlier is None:
            raise ApiError(Code.NOT_FOUND, "there is no such permission")
        if earlier["option_id"] != option_id:
            raise _already_answered_error(earlier["option_id"])
        return earlier

    def cancel_all(self, reason: str) -> None:
        """Cancel all open requests; ``reason`` is ``turn_cancelled``, ``agent_gone`` or ``stopped``."""
        for permission in list(self._open.values()):
            self._cancel(permission, reason)

    def _cancel(self, permission: _OpenPermission, reason: str) -> None:
        if permission.chosen is not None:
            return  # an answer is being written to disk and will reach the agent
        permission_id = permission.body["permission_id"]
        if self._open.pop(permission_id, None) is None:
            return
        self._journal.append(JournalKind.PERMISSION_CANCELLED, permission_id=permission_id, reason=reason)
        if not permission.decided.done():
            permission.decided.set_result(None)


def _first_allow_option(options: list[Mapping[str, Any]]) -> str | None:
    allowing = (option for option in options if str(option.get("kind", "")).startswith("allow"))
    return next((str(option["option_id"]) for option in allowing if "option_id" in option), None)


def _already_answered_error(option_id: str | None) -> ApiError:
    return ApiError(Code.ALREADY_ANSWERED, "the permission was already answered differently", option_id=option_id)
