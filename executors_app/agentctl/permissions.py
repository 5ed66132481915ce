"""The agent's open requests: permissions, and questions to people, each answered or cancelled once.

A question is a permission request with a form or a link in ``question``; its options are the actions of ACP. What a
person typed goes to the agent and nowhere else: neither the journal nor the store has it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from executors_app.agentctl.journal import Journal
from executors_app.agentctl.state_files import DurableStore
from executors_app.machine import crash_points
from executors_app.wire import questions
from executors_app.wire.protocol import WITHDRAWN, ApiError, Code, JournalKind, validation_error
from executors_app.wire.questions import check_answer
from executors_app.wire.questions.schema import options_of

_MAX_REPORTED_CALLS: Final = 10_000
"""Tool calls of a turn whose ids are known; an agent decides how many it makes."""


@dataclass(slots=True)
class _OpenPermission:
    body: dict[str, Any]
    decided: asyncio.Future[str | None]
    """The chosen option; None if the request was cancelled."""
    chosen: str | None = None
    """The first answer, set as soon as it arrives."""
    content: Mapping[str, Any] = field(default_factory=dict)
    """The fields of an accepted form."""
    waiting: int = 0
    """Number of the agent's requests that the answer goes to: it may ask twice for one tool call."""

    def is_for(self, tool_call: Mapping[str, Any], message_id: str | None) -> bool:
        """Whether nobody has answered it yet, and it is about this tool call of this turn."""
        own = self.body["tool_call"]
        is_same_call = _call_identity(own) is not None and _call_identity(own) == _call_identity(tool_call)
        return self.chosen is None and is_same_call and self.body["message_id"] == message_id


def _call_identity(tool_call: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what names a tool call within its turn; None if its agent gave it no id."""
    call_id = str(tool_call.get("tool_call_id") or "")
    if call_id:
        return (str(tool_call.get("sub_agent") or ""), call_id)
    return None


class Permissions:
    """The open permission requests of one agent, and the answers to all earlier ones."""

    def __init__(self, journal: Journal, memory: DurableStore):
        self._journal, self._store = journal, memory
        self._open: dict[str, _OpenPermission] = {}
        self._reported_calls: set[tuple[str, str]] = set()

    def note_tool_call(self, tool_call: Mapping[str, Any]) -> None:
        """Note that the agent has reported this tool call in its turn."""
        identity = _call_identity(tool_call)
        if identity is not None and len(self._reported_calls) < _MAX_REPORTED_CALLS:
            self._reported_calls.add(identity)

    def pending(self) -> list[dict[str, Any]]:
        """Return the bodies of unanswered ``permission.requested`` lines."""
        return [each.body for each in self._open.values() if each.chosen is None]

    async def ask(
        self, request: Mapping[str, Any], message_id: str | None, *, auto_approve: bool, refuse: bool = False
    ) -> str | None:
        """Wait for the answer to a permission request: the chosen option, or None if it was cancelled.

        ``auto_approve`` takes the first option that allows; ``refuse`` cancels the request at once. A tool call has one
        open request: a repeated one waits for the same answer, and one that shows or offers something else takes the
        place of the earlier, which is cancelled. So nobody consents to what was not shown. An id that no tool call has
        identifies none: some agents give the same one to all requests of a kind, and then each is open for itself.
        """
        earlier = self._find_open(request, message_id)
        same = next((each for each in earlier if _shows_the_same(each, request)), None)
        if same is not None and not refuse:
            return await self._wait_for_answer(same)
        permission = self._begin(request, message_id, list(request.get("options") or ()))
        if _call_identity(request.get("tool_call") or {}) in self._reported_calls:
            for each in earlier:
                self._cancel(each, WITHDRAWN)
        permission_id, options = permission.body["permission_id"], permission.body["options"]
        if refuse:
            self._refuse(permission)
            return None
        if auto_approve and (option := _first_allow_option(options)) is not None:
            self._journal.append(JournalKind.PERMISSION_RESOLVED, permission_id=permission_id, option_id=option)
            return option
        return await self._wait_for_answer(permission)

    async def ask_question(
        self, request: Mapping[str, Any], message_id: str | None, *, refuse: bool = False
    ) -> tuple[str, Mapping[str, Any]]:
        """Wait for a person's answer to a question; return its action and, if it was accepted, the form's content.

        ``request`` is ``{"tool_call": {...}, "question": {...}}``. A cancelled question has the action *cancel*.
        """
        permission = self._begin(request, message_id, options_of(request["question"]))
        if refuse:
            self._refuse(permission)
            return questions.CANCEL, {}
        return await self._wait_for_answer(permission) or questions.CANCEL, permission.content

    def _find_open(self, request: Mapping[str, Any], message_id: str | None) -> list[_OpenPermission]:
        """Return the unanswered requests about the same tool call."""
        tool_call = request.get("tool_call") or {}
        open_ones = (each for each in self._open.values() if "question" not in each.body)
        return [each for each in open_ones if each.is_for(tool_call, message_id)]

    def _begin(
        self, request: Mapping[str, Any], message_id: str | None, options: Sequence[Mapping[str, Any]]
    ) -> _OpenPermission:
        body = {
            "permission_id": str(uuid.uuid4()),
            "message_id": message_id,
            "tool_call": request.get("tool_call") or {},
            "options": options,
        }
        if "question" in request:
            body["question"] = request["question"]
        self._journal.append(JournalKind.PERMISSION_REQUESTED, **body)
        crash_points.reached("agentctl.permission_asked")
        return _OpenPermission(body, asyncio.get_running_loop().create_future())

    def _refuse(self, permission: _OpenPermission) -> None:
        cancelled = {"permission_id": permission.body["permission_id"], "reason": "turn_cancelled"}
        self._journal.append(JournalKind.PERMISSION_CANCELLED, **cancelled)

    async def _wait_for_answer(self, permission: _OpenPermission) -> str | None:
        permission_id = permission.body["permission_id"]
        self._open[permission_id] = permission
        permission.waiting += 1
        try:
            # Shielded: the agent may withdraw a request whose answer is just being written to disk.
            return await asyncio.shield(permission.decided)
        except asyncio.CancelledError as cancelled:
            is_withdrawn = cancelled.args == (WITHDRAWN,)
            if is_withdrawn and permission.chosen is not None and (task := asyncio.current_task()) is not None:
                task.uncancel()
                return await permission.decided
            if not is_withdrawn:
                self._cancel(permission, "agent_gone")
            elif permission.waiting == 1:  # no other request waits for the same answer
                self._cancel(permission, WITHDRAWN)
            raise
        finally:
            permission.waiting -= 1
            if not permission.waiting:
                self._open.pop(permission_id, None)

    async def answer(
        self, permission_id: str, option_id: str, content: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Answer a request once; repeating the same option returns the first result. Raises ApiError.

        ``content`` holds the fields of an accepted form; the first one counts.
        """
        permission = self._open.get(permission_id)
        if permission is None:
            return self._recorded_answer(permission_id, option_id)
        if option_id not in {option.get("option_id") for option in permission.body["options"]}:
            raise validation_error("there is no such option", option_id=option_id)
        if option_id == questions.ACCEPT and (question := permission.body.get("question")):
            _refuse_wrong_answer(question, content or {})
        if permission.chosen not in (None, option_id):
            raise _already_answered_error(permission.chosen)
        result = {"option_id": option_id}
        if permission.chosen is None:
            permission.chosen, permission.content = option_id, content or {}
            seq = self._journal.append(
                JournalKind.PERMISSION_RESOLVED, permission_id=permission_id, option_id=option_id
            )
            # The agent gets the answer only after it is on disk: after a crash in between, people are not asked
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

    def complete(self, elicitation_id: str) -> bool:
        """Close the open question with this link, because the agent reports that it is done; False if there is none."""
        for permission in self._open.values():
            question = permission.body.get("question") or {}
            if question.get("elicitation_id") == elicitation_id and permission.chosen is None:
                permission.chosen = questions.ACCEPT
                permission_id, result = permission.body["permission_id"], {"option_id": questions.ACCEPT}
                self._journal.append(
                    JournalKind.PERMISSION_RESOLVED, permission_id=permission_id, **result, reason="completed"
                )
                self._store.put("answer", permission_id, result)
                permission.decided.set_result(questions.ACCEPT)
                return True
        return False

    def _recorded_answer(self, permission_id: str, option_id: str | None) -> dict[str, Any]:
        earlier: dict[str, Any] | None = self._store.get("answer", permission_id)
        if earlier is None:
            raise ApiError(Code.NOT_FOUND, "there is no such permission")
        if earlier["option_id"] != option_id:
            raise _already_answered_error(earlier["option_id"])
        return earlier

    def cancel_all(self, reason: str) -> None:
        """Cancel all open requests; ``reason`` is ``turn_cancelled``, ``agent_gone`` or ``stopped``.

        The turn is over then, and with it the scope of its tool calls.
        """
        self._reported_calls.clear()
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


class RequestingTurn(Protocol):
    """The active turn, as far as its agent's requests concern it."""

    @property
    def message_id(self) -> str | None:
        """Its message id; None without a turn."""

    @property
    def is_cancel_requested(self) -> bool:
        """Whether it is being cancelled: the agent gets no more permissions."""

    def note_request(self) -> None:
        """Record that the agent has asked for an answer in it."""

    def note_interruption(self) -> None:
        """Record that a request of the agent was cancelled in it."""


class RequestHost:
    """The part of a ``Host`` that takes the requests of one agent and gives it the answers."""

    def __init__(self, permissions: Permissions, turn: RequestingTurn, *, auto_approve: bool):
        self._requests, self._turn, self._auto_approve = permissions, turn, auto_approve

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        """Wait until a permission is answered or cancelled; return the chosen option, or None."""
        self._turn.note_request()
        chosen = await self._requests.ask(
            request, self._turn.message_id, auto_approve=self._auto_approve, refuse=self._turn.is_cancel_requested
        )
        if chosen is None:
            self._turn.note_interruption()
        return chosen

    async def ask_question(self, request: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Wait until a question is answered or cancelled; return the action of ACP and the content of a form."""
        self._turn.note_request()
        action, content = await self._requests.ask_question(
            request, self._turn.message_id, refuse=self._turn.is_cancel_requested
        )
        if action == questions.CANCEL:
            self._turn.note_interruption()
        return action, content

    def complete_question(self, elicitation_id: str) -> bool:
        """Close an open question with a link, because the user has completed it; return False if there is none."""
        return self._requests.complete(elicitation_id)


def _shows_the_same(permission: _OpenPermission, request: Mapping[str, Any]) -> bool:
    """Whether a repeated request shows the same tool call and offers the same options."""
    shown = (permission.body["tool_call"], permission.body["options"])
    return shown == (request.get("tool_call") or {}, list(request.get("options") or ()))


def _refuse_wrong_answer(question: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    problems = check_answer(question, content)
    if problems:
        fields = {name: {"code": problem.code, "message": problem.message} for name, problem in problems.items()}
        raise validation_error("the answer does not fit the question", fields=fields)


def _first_allow_option(options: list[Mapping[str, Any]]) -> str | None:
    allowing = (option for option in options if str(option.get("kind", "")).startswith("allow"))
    return next((str(option["option_id"]) for option in allowing if "option_id" in option), None)


def _already_answered_error(option_id: str | None) -> ApiError:
    return ApiError(Code.ALREADY_ANSWERED, "the permission was already answered differently", option_id=option_id)
