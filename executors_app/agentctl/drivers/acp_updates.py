"""What an ACP agent says, as journal lines; and what a replayed conversation comes to.

Agents are checked for the few fields that matter here and for nothing else: what cannot be read
becomes a ``log`` line with the agent's own words, so that nothing is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from executors_app.agentctl.protocol import Kind

USER_TEXTS: Final = 20
"""So many of the last user texts of a replay are kept."""
USER_TEXT_BYTES: Final = 4096

_MESSAGES: Final = {
    "user_message_chunk": Kind.MESSAGE_USER,
    "agent_message_chunk": Kind.MESSAGE_AGENT,
    "agent_thought_chunk": Kind.MESSAGE_THOUGHT,
}
_TOOL_FIELDS: Final = {
    "title": "title",
    "kind": "tool_kind",
    "status": "status",
    "content": "content",
    "locations": "locations",
    "rawInput": "raw_input",
    "rawOutput": "raw_output",
}

Line = tuple[Kind, dict[str, Any]]


def journal_line(update: Mapping[str, Any]) -> Line:
    """The kind and body of the journal line for the ``update`` of a ``session/update``."""
    name = update.get("sessionUpdate")
    if name in _MESSAGES:
        return _message(_MESSAGES[name], update)
    if name == "tool_call" and isinstance(update.get("toolCallId"), str):
        return Kind.TOOL_CALL, {"title": "", "tool_kind": "other", "status": "pending", **tool_call(update)}
    if name == "tool_call_update" and isinstance(update.get("toolCallId"), str):
        return Kind.TOOL_UPDATE, tool_call(update)
    if name == "plan" and isinstance(update.get("entries"), list):
        return Kind.PLAN, {"entries": update["entries"]}
    if name == "usage_update":
        return Kind.USAGE, {"usage": {key: value for key, value in update.items() if key != "sessionUpdate"}}
    return Kind.LOG, {"level": "debug", "text": f"the agent sent {name}", "data": dict(update)}


def tool_call(update: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a tool call, or of a change to one: only what the agent told."""
    told = {ours: update[theirs] for theirs, ours in _TOOL_FIELDS.items() if update.get(theirs) is not None}
    return {"tool_call_id": str(update.get("toolCallId", "")), **told}


def permission_request(params: Any) -> dict[str, Any]:
    """The agent's question as ``Host.ask_permission`` wants it; ValueError where none can be made of it."""
    asked = params if isinstance(params, dict) else {}
    told = asked.get("options")
    options = [
        {"option_id": option["optionId"], "name": str(option.get("name", "")), "kind": str(option.get("kind", ""))}
        for option in (told if isinstance(told, list) else ())
        if isinstance(option, dict) and isinstance(option.get("optionId"), str)
    ]
    call = asked.get("toolCall")
    if not options or not isinstance(call, dict):
        raise ValueError("a permission wants a tool call and options")
    return {"tool_call": tool_call(call), "options": options}


def text_of(content: Any) -> str:
    """The text of a content block; what is no text is named in brackets."""
    if not isinstance(content, dict):
        return ""
    if isinstance(content.get("text"), str):
        return str(content["text"])
    resource = content.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[{content.get('type')}: {content.get('uri') or content.get('name') or content.get('mimeType') or '?'}]"


def _message(kind: Kind, update: Mapping[str, Any]) -> Line:
    content = update.get("content")
    if not isinstance(content, dict):
        return Kind.LOG, {"level": "warning", "text": "the agent sent a message without content", "data": dict(update)}
    body: dict[str, Any] = {"text": text_of(content)}
    if content.get("type") != "text":
        body["content"] = content
    if isinstance(update.get("messageId"), str):
        body["agent_message_id"] = update["messageId"]
    return kind, body


class Replay:
    """Gathers the conversation that an agent replays while it loads."""

    def __init__(self) -> None:
        self.messages = 0
        """Messages of the user and the agent; the chunks of one are counted once."""
        self._user: deque[str] = deque(maxlen=USER_TEXTS)
        self._last: tuple[Any, Any] | None = None

    def add(self, update: Mapping[str, Any]) -> None:
        """Take in one replayed update."""
        name = update.get("sessionUpdate")
        if name not in ("user_message_chunk", "agent_message_chunk"):
            self._last = None
            return
        message = (name, update.get("messageId"))
        begins = message != self._last
        self._last = message
        self.messages += begins
        if name == "user_message_chunk":
            text = text_of(update.get("content"))
            self._user.append(text if begins or not self._user else self._user.pop() + text)

    @property
    def user_texts(self) -> list[str]:
        """The last user texts, each cut to ``USER_TEXT_BYTES``."""
        return [text.encode("utf-8", "replace")[:USER_TEXT_BYTES].decode("utf-8", "ignore") for text in self._user]
