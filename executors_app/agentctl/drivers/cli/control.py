"""Claude Code's control protocol, inside its ``stream-json``: requests either way, each with its answer.

We ask it to ``initialize``, to take MCP servers and to ``interrupt`` a turn; it asks us ``can_use_tool``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from executors_app.agentctl.drivers import Host
from executors_app.agentctl.drivers.acp_wire import AgentGone, encode
from executors_app.agentctl.drivers.cli.message_lines import tool_kind, tool_title

_ALLOW: Final = {"option_id": "allow", "name": "Allow", "kind": "allow_once"}
_ALWAYS: Final = {"option_id": "always", "name": "Allow from now on", "kind": "allow_always"}
_REJECT: Final = {"option_id": "reject", "name": "Reject", "kind": "reject_once"}
_REJECTED: Final = "The user rejected this."
_CANCELLED: Final = "The turn was cancelled."


class ControlError(Exception):
    """The agent refused a control request; the message is its own."""


class Control:
    """The requests of one process, ours and its."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], host: Host):
        self._write, self._host = write, host
        self._calls: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._next = 0

    async def ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the agent something and wait for its answer; ControlError, AgentGone, PipeStuck. No time limit."""
        self._next += 1
        request_id = f"kandev-{self._next}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = answer
        try:
            await self._send({"type": "control_request", "request_id": request_id, "request": dict(request)})
            return await answer
        finally:
            self._calls.pop(request_id, None)

    def takes(self, message: Mapping[str, Any]) -> bool:
        """Whether a line is one of the control protocol; it is dealt with then, without waiting."""
        match message.get("type"):
            case "control_response":
                self._answered(message["response"])
            case "control_request":
                request_id = str(message["request_id"])
                task = asyncio.create_task(self._serve(request_id, message["request"]), name="agent's question")
                self._questions[request_id] = task
                task.add_done_callback(lambda _: self._questions.pop(request_id, None))
            case "control_cancel_request":
                if question := self._questions.get(str(message.get("request_id"))):
                    question.cancel()
            case _:
                return False
        return True

    async def close(self) -> None:
        """The process is gone: whatever is asked for is not answered any more."""
        for call in self._calls.values():
            if not call.done():
                call.set_exception(AgentGone())
        questions = list(self._questions.values())
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    def _answered(self, response: Mapping[str, Any]) -> None:
        call = self._calls.get(str(response.get("request_id")))
        if call is None or call.done():
            return
        if response.get("subtype") == "success":
            told = response.get("response")
            call.set_result(told if isinstance(told, dict) else {})
        else:
            call.set_exception(ControlError(str(response.get("error") or "refused")))

    async def _serve(self, request_id: str, request: Mapping[str, Any]) -> None:
        """Answer a request of the agent; it hears something in any case, unless it has taken it back."""
        if request.get("subtype") == "can_use_tool":
            reply = {"subtype": "success", "response": await self._permission(request)}
        else:
            reply = {"subtype": "error", "error": f"{request.get('subtype')} is not supported"}
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
        options = [_ALLOW, *([_ALWAYS] if offered else []), _REJECT]
        chosen = await self._host.ask_permission({"tool_call": call, "options": options})
        if chosen is None:
            return {"behavior": "deny", "message": _CANCELLED, "interrupt": True}
        if chosen == _REJECT["option_id"]:
            return {"behavior": "deny", "message": _REJECTED}
        more = {"updatedPermissions": rules} if chosen == _ALWAYS["option_id"] else {}
        return {"behavior": "allow", "updatedInput": arguments, **more}

    async def _send(self, message: Mapping[str, Any]) -> None:
        try:
            await self._write(encode(dict(message)) + b"\n")
        except OSError as error:
            raise AgentGone from error


def servers_by_name(servers: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """MCP servers by name, as Claude Code wants them; over stdin, so that no secret of theirs is in a command."""
    return {
        str(server.get("name") or f"server-{number}"): {key: value for key, value in server.items() if key != "name"}
        for number, server in enumerate(servers, 1)
    }
