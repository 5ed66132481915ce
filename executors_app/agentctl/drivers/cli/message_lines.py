"""The lines of ``stream-json``: Claude Code's output format, which Amp speaks as well.

``system`` (``init`` names the conversation), ``assistant`` and ``user`` with content blocks as in the
Messages API, and one ``result`` a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from executors_app.agentctl.drivers.cli.told import Ended, Failed, Line, Named, Told, log, plan, text_in
from executors_app.agentctl.drivers.cli.told import tool_call as told_call
from executors_app.agentctl.drivers.cli.told import tool_result as told_result
from executors_app.agentctl.protocol import Kind

_TOOL_KINDS: Final = {
    "read": ("read", "notebookread", "ls"),
    "edit": ("edit", "write", "multiedit", "notebookedit", "edit_file", "create_file", "undo_edit"),
    "execute": ("bash", "bashoutput", "killshell"),
    "search": ("grep", "glob", "websearch", "web_search", "finder"),
    "fetch": ("webfetch", "read_web_page"),
    "think": ("task", "agent", "oracle"),
}
_KIND_OF: Final = {name: kind for kind, names in _TOOL_KINDS.items() for name in names}
_TELLING: Final = ("command", "cmd", "file_path", "path", "pattern", "query", "url", "description")
"""Arguments that say best what a call is about, the first one found."""
_TITLE: Final = 200


def tool_kind(name: str) -> str:
    """ACP's word for what a tool does."""
    return _KIND_OF.get(name.lower(), "other")


def tool_title(name: str, arguments: Any) -> str:
    """A tool call on one line."""
    told = arguments if isinstance(arguments, dict) else {}
    about = next((value for key in _TELLING if isinstance(value := told.get(key), str) and value), "")
    return f"{name}: {about.splitlines()[0]}"[:_TITLE] if about.strip() else name


class MessageLines:
    """A ``Reader`` for one process."""

    def __init__(self, *, echoes: bool = False) -> None:
        """``echoes``: the first text of the user is the prompt, as the agent has read it."""
        self._echo_due = echoes
        self._last_message_uuid: str | None = None
        self._said = False
        """The last that was told is a whole message: the next one is a paragraph of its own."""

    def __call__(self, message: Mapping[str, Any]) -> Iterator[Told]:
        """What ``message`` comes to."""
        kind = message.get("type")
        if kind == "system" and message.get("subtype") == "init":
            yield Named(str(message.get("session_id") or ""))
        elif kind == "result":
            yield from self._result(message)
        elif kind in ("assistant", "user") and isinstance(message.get("message"), Mapping):
            yield from self._blocks(message, message["message"].get("content"))
        elif kind != "keep_alive":
            yield log(f"the agent sent {kind} {message.get('subtype') or ''}".strip(), dict(message))

    def _blocks(self, message: Mapping[str, Any], content: Any) -> Iterator[Told]:
        by_agent, nested = message["type"] == "assistant", message.get("parent_tool_use_id") is not None
        if by_agent and not nested and isinstance(message.get("uuid"), str):
            self._last_message_uuid = message["uuid"]
        if message.get("isReplay") is True:
            return
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if block.get("type") == "text":
                yield from self._texts(str(block.get("text") or ""), by_agent=by_agent, nested=nested)
            else:
                yield from self._deeds(block)

    def _texts(self, text: str, *, by_agent: bool, nested: bool) -> Iterator[Line]:
        if nested:
            yield log("a subagent said", {"text": text})
        elif by_agent:
            yield self._text(text)
        elif self._echo_due:
            self._echo_due = False
        else:
            yield self._other(Kind.MESSAGE_USER, text=text)

    def _deeds(self, block: Mapping[str, Any]) -> Iterator[Line]:
        match block.get("type"):
            case "thinking":
                yield self._other(Kind.MESSAGE_THOUGHT, text=str(block.get("thinking") or ""))
            case "tool_use" | "server_tool_use":
                yield from self._call(block)
            case "tool_result" | "web_search_tool_result":
                yield from self._call_ended(block)
            case other:
                yield log(f"the agent sent a block {other}", dict(block))

    def _text(self, text: str) -> Line:
        text, self._said = f"\n\n{text}" if self._said else text, True
        return Line(Kind.MESSAGE_AGENT, {"text": text})

    def _other(self, kind: Kind, **body: Any) -> Line:
        self._said = False
        return Line(kind, body)

    def _call(self, block: Mapping[str, Any]) -> Iterator[Line]:
        self._said = False
        name, arguments = str(block.get("name") or "tool"), block.get("input")
        yield told_call(str(block["id"]), tool_title(name, arguments), tool_kind(name), arguments)
        steps = arguments.get("todos") if isinstance(arguments, dict) else None
        if isinstance(steps, list):
            yield plan((str(step.get("content")), str(step.get("status") or "pending")) for step in steps)

    def _call_ended(self, block: Mapping[str, Any]) -> Iterator[Line]:
        self._said = False
        failed = block.get("is_error") is True
        yield told_result(str(block["tool_use_id"]), text_in(block.get("content") or ""), failed=failed)

    def _result(self, message: Mapping[str, Any]) -> Iterator[Told]:
        self._said = False
        usage = message.get("usage")
        if isinstance(usage, dict):
            cost = message.get("total_cost_usd")
            yield Line(Kind.USAGE, {"usage": usage if cost is None else {**usage, "total_cost_usd": cost}})
        subtype = str(message.get("subtype") or "")
        if subtype == "error_max_turns":
            yield Ended("max_turn_requests", self._last_message_uuid)
        elif message.get("is_error") is True or subtype.startswith("error"):
            # It names the conversation that was asked for even where there is none: no proof of it.
            yield Failed(_error_of(message) or subtype)
        else:
            yield Named(str(message.get("session_id") or ""))
            yield Ended(str(message.get("stop_reason") or "end_turn"), self._last_message_uuid)


def _error_of(message: Mapping[str, Any]) -> str:
    errors = message.get("errors")
    told = [str(error) for error in errors] if isinstance(errors, list) else []
    return "; ".join(told) or str(message.get("error") or message.get("result") or "")
