"""Claude Code's ``stream-json`` format, which Amp uses as well, and Claude Code's control protocol within it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import Host
from executors_app.agentctl.drivers.cli_events import (
    CliEvent,
    ConversationNamed,
    JournalLine,
    TurnEnded,
    TurnErrored,
    joined_text,
    log_event,
    plan_event,
    tool_call_event,
    tool_result_event,
)
from executors_app.agentctl.drivers.failures import stop_reason_text
from executors_app.agentctl.drivers.json_rpc import AgentGone, encode_message
from executors_app.agentctl.drivers.json_values import list_of, object_of
from executors_app.wire.protocol import JournalKind

_TOOL_KINDS: Final = {
    "read": ("read", "notebookread", "ls"),
    "edit": ("edit", "write", "multiedit", "notebookedit", "edit_file", "create_file", "undo_edit"),
    "execute": ("bash", "bashoutput", "killshell"),
    "search": ("grep", "glob", "websearch", "web_search", "finder"),
    "fetch": ("webfetch", "read_web_page"),
    "think": ("task", "agent", "oracle"),
}
_KIND_OF: Final = {name: kind for kind, names in _TOOL_KINDS.items() for name in names}
_TITLE_ARGUMENTS: Final = ("command", "cmd", "file_path", "path", "pattern", "query", "url", "description")
"""Arguments that describe a call best; the first one present becomes part of its title."""
_TITLE_LIMIT: Final = 200


def tool_kind(name: str) -> str:
    """Return ACP's kind of a tool; ``other`` if unknown."""
    return _KIND_OF.get(name.lower(), "other")


def tool_title(name: str, arguments: Any) -> str:
    """Return a one-line title of a tool call."""
    fields = object_of(arguments)
    about = next((value for key in _TITLE_ARGUMENTS if isinstance(value := fields.get(key), str) and value), "")
    if about.strip():
        return f"{name}: {about.splitlines()[0]}"[:_TITLE_LIMIT]
    return name


class StreamJsonReader:
    """A ``LineParser`` for one process."""

    def __init__(self, *, echoes: bool = False) -> None:
        """``echoes``: the agent repeats the prompt as the user's first text, which is skipped."""
        self._echo_due = echoes
        self._last_message_uuid: str | None = None
        self._last_was_text = False
        """Whether a whole message was just reported, so that a message that follows it starts a new paragraph."""

    def __call__(self, message: Mapping[str, Any]) -> Iterator[CliEvent]:
        """Yield the events of one line."""
        kind = message.get("type")
        if kind == "system" and message.get("subtype") == "init":
            yield ConversationNamed(str(message.get("session_id") or ""))
        elif kind == "result":
            yield from self._result(message)
        elif kind in ("assistant", "user") and isinstance(message.get("message"), Mapping):
            yield from self._blocks(message, message["message"].get("content"))
        elif kind != "keep_alive":
            yield log_event(f"the agent sent {kind} {message.get('subtype') or ''}".strip(), dict(message))

    def _blocks(self, message: Mapping[str, Any], content: Any) -> Iterator[CliEvent]:
        # Messages of subagents are nested: a conversation cannot be resumed at one of them.
        by_agent, nested = message["type"] == "assistant", message.get("parent_tool_use_id") is not None
        parent = message["parent_tool_use_id"] if isinstance(message.get("parent_tool_use_id"), str) else ""
        if by_agent and not nested and isinstance(message.get("uuid"), str):
            self._last_message_uuid = message["uuid"]
        if message.get("isReplay") is True:
            return  # a user message that the agent only repeats
        blocks = content
        if not isinstance(blocks, list):
            blocks = [content or ""]
        for block in blocks:
            if isinstance(block, str):
                yield from self._texts(block, by_agent=by_agent, nested=nested)
            elif not isinstance(block, Mapping):
                yield log_event("the agent sent a block that is no object", block, "warning")
            elif block.get("type") == "text":
                yield from self._texts(str(block.get("text") or ""), by_agent=by_agent, nested=nested)
            else:
                yield from self._block(block, parent=parent)

    def _texts(self, text: str, *, by_agent: bool, nested: bool) -> Iterator[JournalLine]:
        if nested:
            yield log_event("text of a subagent", {"text": text})
        elif by_agent:
            yield self._text(text)
        elif self._echo_due:
            self._echo_due = False
        else:
            yield self._other(JournalKind.MESSAGE_USER, text=text)

    def _block(self, block: Mapping[str, Any], *, parent: str) -> Iterator[JournalLine]:
        match block.get("type"):
            case "thinking":
                yield self._other(JournalKind.MESSAGE_THOUGHT, text=str(block.get("thinking") or ""))
            case "tool_use" | "server_tool_use":
                yield from self._call(block, parent=parent)
            case "tool_result" | "web_search_tool_result":
                yield from self._call_ended(block)
            case other:
                yield log_event(f"the agent sent a block {other}", dict(block))

    def _text(self, text: str) -> JournalLine:
        if self._last_was_text:
            text = f"\n\n{text}"
        self._last_was_text = True
        return JournalLine(JournalKind.MESSAGE_AGENT, {"text": text})

    def _other(self, kind: JournalKind, **body: Any) -> JournalLine:
        self._last_was_text = False
        return JournalLine(kind, body)

    def _call(self, block: Mapping[str, Any], *, parent: str) -> Iterator[JournalLine]:
        self._last_was_text = False
        if block.get("id") is None:
            yield log_event("the agent reported a tool call without an id", dict(block), "warning")
            return
        name, arguments = str(block.get("name") or "tool"), block.get("input")
        title, kind = tool_title(name, arguments), tool_kind(name)
        yield tool_call_event(str(block["id"]), title, kind, arguments, parent=parent)
        steps = object_of(arguments).get("todos")
        if isinstance(steps, list):
            items = [step for step in steps if isinstance(step, Mapping)]
            yield plan_event((str(step.get("content")), str(step.get("status") or "pending")) for step in items)

    def _call_ended(self, block: Mapping[str, Any]) -> Iterator[JournalLine]:
        self._last_was_text = False
        failed = block.get("is_error") is True
        if block.get("tool_use_id") is None:
            yield log_event("the agent reported a result without the id of its tool call", dict(block), "warning")
            return
        yield tool_result_event(str(block["tool_use_id"]), joined_text(block.get("content") or ""), failed=failed)

    def _result(self, message: Mapping[str, Any]) -> Iterator[CliEvent]:
        self._last_was_text = False
        usage = message.get("usage")
        if isinstance(usage, dict):
            cost = message.get("total_cost_usd")
            if cost is not None:
                usage = {**usage, "total_cost_usd": cost}
            yield JournalLine(JournalKind.USAGE, {"usage": usage})
        subtype = str(message.get("subtype") or "")
        if subtype == "error_max_turns":
            yield TurnEnded("max_turn_requests", self._last_message_uuid)
        elif message.get("is_error") is True or subtype.startswith("error"):
            # An error result names the requested conversation even if there is none, so it proves nothing about it.
            yield TurnErrored(_error_text(message) or subtype)
        else:
            yield ConversationNamed(str(message.get("session_id") or ""))
            # Not every version gives a stop reason, but *success* says that the agent was done.
            reason = stop_reason_text(message.get("stop_reason"))
            if not reason and subtype == "success":
                reason = "end_turn"
            yield TurnEnded(reason, self._last_message_uuid)


def _error_text(message: Mapping[str, Any]) -> str:
    errors = list_of(message.get("errors"))
    return "; ".join(map(str, errors)) or str(message.get("error") or message.get("result") or "")


_ALLOW: Final = {"option_id": "allow", "name": "Allow", "kind": "allow_once"}
_ALWAYS: Final = {"option_id": "always", "name": "Allow from now on", "kind": "allow_always"}
_REJECT: Final = {"option_id": "reject", "name": "Reject", "kind": "reject_once"}
_REJECTED: Final = "The user rejected this."
_CANCELLED: Final = "The turn was cancelled."


class ControlError(Exception):
    """The agent refused a control request; the message is its own."""


@dataclass(slots=True, eq=False)
class _OpenQuestion:
    """A request of the agent that has no answer yet."""

    request: Mapping[str, Any]
    task: asyncio.Task[None] | None = None
    is_being_answered: bool = False

    def withdraw(self) -> None:
        """Give no answer, unless it is being written: the rest of a torn line would be read as part of the next."""
        if self.task is not None and not self.is_being_answered:
            self.task.cancel()


class ControlProtocol:
    """Claude Code's control protocol with one process: requests in both directions."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], host: Host):
        self._write, self._host = write, host
        self._calls: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._questions: dict[str, _OpenQuestion] = {}
        self._next = 0

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request and return its answer, without a time limit; raises ControlError, AgentGone, PipeStuck."""
        self._next += 1
        request_id = f"kandev-{self._next}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = answer
        try:
            await self._send({"type": "control_request", "request_id": request_id, "request": dict(request)})
            return await answer
        finally:
            self._calls.pop(request_id, None)

    def handle_if_control(self, message: Mapping[str, Any]) -> bool:
        """Handle a line of the control protocol without waiting; return False for any other line."""
        match message.get("type"):
            case "control_response":
                self._answered(message["response"])
            case "control_request":
                self._serve_once(str(message["request_id"]), message["request"])
            case "control_cancel_request":
                if question := self._questions.get(str(message.get("request_id"))):
                    question.withdraw()
            case _:
                return False
        return True

    async def close(self) -> None:
        """Fail our open requests with AgentGone and drop the agent's, because the process has ended."""
        for call in self._calls.values():
            if not call.done():
                call.set_exception(AgentGone())
        questions = [question.task for question in self._questions.values() if question.task is not None]
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    def _answered(self, response: Mapping[str, Any]) -> None:
        call = self._calls.get(str(response.get("request_id")))
        if call is None or call.done():
            return
        if response.get("subtype") == "success":
            result = response.get("response")
            call.set_result(object_of(result))
        else:
            call.set_exception(ControlError(str(response.get("error") or "refused")))

    def _serve_once(self, request_id: str, request: Mapping[str, Any]) -> None:
        """Answer a request in a task of its own; a repeated one gets the answer of the first.

        If an open request's id is used for another one, nobody knows for which the agent would take an answer: both
        are refused.
        """
        earlier = self._questions.get(request_id)
        if earlier is not None and earlier.request == request:
            return
        if earlier is not None:
            earlier.withdraw()
            text = "the agent used the id of an open request for another one, so both were refused"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={})
        question = _OpenQuestion(request)
        if earlier is not None:
            serving = self._refuse(request_id)
        else:
            serving = self._serve(request_id, question)
        question.task = asyncio.create_task(serving, name="agent's question")
        self._questions[request_id] = question
        question.task.add_done_callback(lambda _: self._forget(request_id, question))

    def _forget(self, request_id: str, question: _OpenQuestion) -> None:
        if self._questions.get(request_id) is question:
            del self._questions[request_id]

    async def _refuse(self, request_id: str) -> None:
        reply = {"subtype": "error", "error": "The id of an open request was used for another one."}
        await self._send({"type": "control_response", "response": {**reply, "request_id": request_id}})

    async def _serve(self, request_id: str, question: _OpenQuestion) -> None:
        """Answer a request of the agent, unless the agent withdraws it first."""
        request = question.request
        if request.get("subtype") == "can_use_tool":
            reply = {"subtype": "success", "response": await self._permission(request)}
        else:
            reply = {"subtype": "error", "error": f"{request.get('subtype')} is not supported"}
        question.is_being_answered = True
        await self._send({"type": "control_response", "response": {**reply, "request_id": request_id}})

    async def _permission(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments, rules = (
            str(request.get("tool_name")),
            request.get("input"),
            request.get("permission_suggestions"),
        )
        offered = bool(rules) and request.get("suppress_always_allow_rule") is not True
        call = {
            "tool_call_id": str(request.get("tool_use_id") or ""),
            "title": tool_title(name, arguments),
            "tool_kind": tool_kind(name),
            "raw_input": arguments,
        }
        options = [_ALLOW, _REJECT]
        if offered:
            options.insert(1, _ALWAYS)
        chosen = await self._host.ask_permission({"tool_call": call, "options": options})
        if chosen is None:
            # A denial alone would let the agent try something else.
            return {"behavior": "deny", "message": _CANCELLED, "interrupt": True}
        if chosen == _REJECT["option_id"]:
            return {"behavior": "deny", "message": _REJECTED}
        answer = {"behavior": "allow", "updatedInput": arguments}
        if chosen == _ALWAYS["option_id"]:
            answer["updatedPermissions"] = rules
        return answer

    async def _send(self, message: Mapping[str, Any]) -> None:
        try:
            await self._write(encode_message(dict(message)) + b"\n")
        except OSError as error:
            raise AgentGone from error


def mcp_servers_by_name(servers: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return MCP servers by name, as Claude Code expects them; sent over stdin to keep secrets out of command lines."""
    return {
        str(server.get("name") or f"server-{number}"): {key: value for key, value in server.items() if key != "name"}
        for number, server in enumerate(servers, 1)
    }
