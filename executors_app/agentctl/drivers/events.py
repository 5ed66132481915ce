"""Conversion of what agents send into journal lines.

It covers updates of ACP agents, lines of command-line agents, the reader that follows the turns of the latter, failures
that an ACP agent does not report as an error (it ends, or reports one as the last text of a turn), and what ACP agents
ask people: permissions, and questions by form or by link (``elicitation/create``).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn

from executors_app.agentctl.drivers import Host, StartFailed
from executors_app.agentctl.drivers.json_rpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from executors_app.wire import questions
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.protocol import Code, JournalKind
from executors_app.wire.questions.schema import parse_question
from executors_app.wire.replayed_texts import MAX_DIGESTS, MAX_TEXTS, text_digest

USER_TEXT_BYTES: Final = 4096

_MESSAGE_KINDS: Final = {
    "user_message_chunk": JournalKind.MESSAGE_USER,
    "agent_message_chunk": JournalKind.MESSAGE_AGENT,
    "agent_thought_chunk": JournalKind.MESSAGE_THOUGHT,
}
_TOOL_FIELDS: Final[Mapping[str, tuple[str, type]]] = {
    "title": ("title", str),
    "kind": ("tool_kind", str),
    "status": ("status", str),
    "content": ("content", list),
    "locations": ("locations", list),
    "rawInput": ("raw_input", object),
    "rawOutput": ("raw_output", object),
}
"""ACP's field of a tool call, ours, and the type of its values; a value of another type is left out."""

LineParts = tuple[JournalKind, dict[str, Any]]


def update_to_journal_line(update: Mapping[str, Any]) -> LineParts:
    """Return kind and body of the journal line for the ``update`` of a ``session/update``."""
    name = update.get("sessionUpdate")
    if name in _MESSAGE_KINDS:
        return _message_line(_MESSAGE_KINDS[name], update)
    if name in ("tool_call", "tool_call_update"):
        return _tool_line(update)
    if name == "plan" and isinstance(update.get("entries"), list):
        return JournalKind.PLAN, {"entries": update["entries"]}
    if name == "usage_update":
        return JournalKind.USAGE, {"usage": {key: value for key, value in update.items() if key != "sessionUpdate"}}
    return JournalKind.LOG, {"level": "debug", "text": f"the agent sent {name}", "data": dict(update)}


def _tool_line(update: Mapping[str, Any]) -> LineParts:
    if _tool_call_id(update) is None:
        text = "the agent reported a tool call without an id"
        return JournalKind.LOG, {"level": "warning", "text": text, "data": dict(update)}
    if update.get("sessionUpdate") == "tool_call_update":
        return JournalKind.TOOL_UPDATE, acp_tool_call(update)
    return JournalKind.TOOL_CALL, {"title": "", "tool_kind": "other", "status": "pending", **acp_tool_call(update)}


def sub_agent_line(update: Mapping[str, Any]) -> LineParts | None:
    """Return the journal line for an update of a sub-agent: its text or a tool call; None for any other update."""
    kind, body = update_to_journal_line(update)
    if kind == JournalKind.MESSAGE_AGENT:
        return JournalKind.MESSAGE_SUB_AGENT, body
    if kind in (JournalKind.TOOL_CALL, JournalKind.TOOL_UPDATE):
        return (kind, body)
    return None


def acp_tool_call(update: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a tool call or of a change to one, with only the fields that the agent sent."""
    fields = {}
    for theirs, (ours, kind) in _TOOL_FIELDS.items():
        value = update.get(theirs)
        if value is not None and isinstance(value, kind):
            fields[ours] = value
    return {"tool_call_id": _tool_call_id(update) or "", **fields}


def _tool_call_id(update: Mapping[str, Any]) -> str | None:
    """Return the id of a tool call as text, because some agents number their calls; None if it has none."""
    call_id = update.get("toolCallId")
    if isinstance(call_id, int) and not isinstance(call_id, bool):
        return str(call_id)
    if isinstance(call_id, str):
        return call_id
    return None


def parse_permission_request(params: Any) -> dict[str, Any]:
    """Return the agent's question in the shape of ``Host.ask_permission``; raises ValueError if it is invalid."""
    asked = params if isinstance(params, dict) else {}
    offered = asked.get("options")
    options: dict[str, dict[str, str]] = {}
    for option in offered if isinstance(offered, list) else ():
        parsed = _permission_option(option)
        # An answer names an option by its id alone. With two of them, nobody knows which one the agent takes it for.
        if parsed and options.setdefault(parsed["option_id"], parsed) != parsed:
            raise ValueError("two different options of a permission request have the same id")
    call = asked.get("toolCall")
    if offered and not options:
        raise ValueError("none of its options has an id that is a text")
    if not options or not isinstance(call, dict):
        raise ValueError("a permission request needs a tool call and options")
    return {"tool_call": acp_tool_call(call), "options": list(options.values())}


def _permission_option(option: Any) -> dict[str, str] | None:
    """Return an option that can be chosen; None if it has no id. One without a name is shown by its id."""
    option_id = option.get("optionId") if isinstance(option, dict) else None
    if not isinstance(option_id, str) or not option_id.strip():
        return None
    name, kind = option.get("name"), option.get("kind")
    return {
        "option_id": option_id,
        "name": name if isinstance(name, str) and name.strip() else option_id,
        "kind": kind if isinstance(kind, str) else "",
    }


def content_text(content: Any) -> str:
    """Return the text of a content block or of a list of them; other content is named in brackets."""
    if isinstance(content, list):
        return "".join(map(content_text, content))
    if not isinstance(content, dict):
        if isinstance(content, str):
            return content
        return ""
    if isinstance(text := content.get("text"), str):
        return text
    resource = content.get("resource")
    if isinstance(resource, dict) and isinstance(text := resource.get("text"), str):
        return text
    return f"[{content.get('type')}: {content.get('uri') or content.get('name') or content.get('mimeType') or '?'}]"


def _message_line(kind: JournalKind, update: Mapping[str, Any]) -> LineParts:
    content = update.get("content")
    if not content or not isinstance(content, dict | list | str):
        return JournalKind.LOG, {
            "level": "warning",
            "text": "the agent sent a message without content",
            "data": dict(update),
        }
    body: dict[str, Any] = {"text": content_text(content)}
    blocks = content if isinstance(content, list) else [content]
    if any(isinstance(block, dict) and block.get("type") != "text" for block in blocks):
        body["content"] = content
    if isinstance(update.get("messageId"), str):
        body["agent_message_id"] = update["messageId"]
    return kind, body


class ReplayCollector:
    """Collects the conversation that an agent replays while it loads it."""

    def __init__(self) -> None:
        self.messages = 0
        """Number of messages of user and agent; consecutive chunks of one message count once."""
        self.user_messages = 0
        """Number of messages of the user among them."""
        self._user: deque[str] = deque(maxlen=MAX_TEXTS)
        self._digests: deque[str] = deque(maxlen=MAX_DIGESTS)
        """Of all user texts but the last one, which may still grow."""
        self._last: tuple[Any, Any] | None = None

    def add(self, update: Mapping[str, Any]) -> None:
        """Add one replayed update."""
        name = update.get("sessionUpdate")
        if name not in ("user_message_chunk", "agent_message_chunk"):
            self._last = None
            return
        message = (name, update.get("messageId"))
        begins = message != self._last
        self._last = message
        self.messages += begins
        if name == "user_message_chunk":
            self.user_messages += begins
            self._add_user_text(content_text(update.get("content")), begins=begins)

    def _add_user_text(self, text: str, *, begins: bool) -> None:
        if self._user and begins:
            self._digests.append(text_digest(self._user[-1]))
        earlier = self._user.pop() if self._user and not begins else ""
        self._user.append(earlier + text)

    @property
    def user_texts(self) -> list[str]:
        """The last user texts, each cut to ``USER_TEXT_BYTES``."""
        return [text.encode("utf-8", "replace")[:USER_TEXT_BYTES].decode("utf-8", "ignore") for text in self._user]

    @property
    def user_digests(self) -> list[str]:
        """The digests of all user texts, whole, oldest first."""
        return [*self._digests, *(text_digest(text) for text in islice(reversed(self._user), 1))]


LOGIN_PATTERN: Final = re.compile(
    r"\b(?:log|sign) ?in\b|/login\b|logged out|not authenticated|authentication[ _](?:required|failed|error)"
    r"|invalid (?:authentication credentials|api key|bearer token)|(?:oauth |access )?token (?:has |is )?expired"
    r"|(?:missing|no|set (?:an?|the)) api key|invalid x-api-key"
    r"|api[ _]key (?:is |has )?(?:missing|required|not set|not found|invalid|not valid|expired)"
    r"|(?:must be|are not|aren't|not) (?:logged|signed) in|\bauth required\b|\bunauthenticated\b"
    r"|please (?:re-?)?authenticate\b"
    r"|no auth(?:entication)? (?:credentials|information|tokens?) (?:found|available)"
    r"|token (?:has been |was )?(?:revoked|invalidated)\b|\binvalid_grant\b",
    re.IGNORECASE,
)
"""Phrases of agents without a login. They exclude a bare 401, which may come from a provider."""


@dataclass(frozen=True, slots=True)
class ConversationNamed:
    """The agent has named the conversation that it is in."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class JournalLine:
    """A line for the journal."""

    kind: JournalKind
    body: Mapping[str, Any]


NO_STOP_REASON: Final = ""
"""Stop reason of a turn whose agent did not say why it ended. It is not taken for a regular end."""


def stop_reason_text(reason: object) -> str:
    """Return a stop reason as the agent gave it; ``NO_STOP_REASON`` for null and blank texts."""
    if reason is None:
        return NO_STOP_REASON
    return str(reason).strip()


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over; ``stop_reason`` is one of ACP's, or ``NO_STOP_REASON``."""

    stop_reason: str = "end_turn"
    last_message_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class TurnErrored:
    """The turn has ended with an error."""

    message: str


CliEvent = ConversationNamed | JournalLine | TurnEnded | TurnErrored
LineParser = Callable[[Mapping[str, Any]], Iterable[CliEvent]]
"""Parses the lines of one process in order; may keep state from line to line."""


def log_event(text: str, data: Any, level: str = "debug") -> JournalLine:
    """Return a ``log`` line whose ``data`` contains what the agent sent."""
    return JournalLine(
        JournalKind.LOG, {"level": level, "text": text, "data": data if isinstance(data, dict) else {"told": data}}
    )


def tool_call_event(call_id: str, title: str, tool_kind: str, raw_input: Any) -> JournalLine:
    """Return a tool call in the shape that the ACP driver uses."""
    locations = [{"path": path} for path in _input_paths(raw_input)]
    body = {"tool_call_id": call_id, "title": title, "tool_kind": tool_kind, "status": "in_progress"}
    return JournalLine(
        JournalKind.TOOL_CALL, {**body, "raw_input": raw_input, **({"locations": locations} if locations else {})}
    )


def tool_result_event(call_id: str, text: str, *, failed: bool, **more: Any) -> JournalLine:
    """Return the result of a tool call; ``more`` are further fields of ``tool.update``."""
    if text:
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
    else:
        content = []
    status = "failed" if failed else "completed"
    return JournalLine(JournalKind.TOOL_UPDATE, {"tool_call_id": call_id, "status": status, "content": content, **more})


def plan_event(steps: Iterable[tuple[str, str]]) -> JournalLine:
    """Return a plan; each step is a text and a state (``pending``, ``in_progress``, ``completed``)."""
    entries = [{"content": text, "priority": "medium", "status": status} for text, status in steps]
    return JournalLine(JournalKind.PLAN, {"entries": entries})


def joined_text(content: Any) -> str:
    """Return the text of content blocks, or of a plain string."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(joined_text, content)))
    if isinstance(content, str):
        return content
    return content_text(content)


def matches_gone_pattern(text: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern of the agent type recognises ``text`` as the error for a missing conversation."""
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def failure_code(text: str) -> str:
    """Return the code of a turn that ended with this error of the agent."""
    if LOGIN_PATTERN.search(text):
        return Code.AUTH_REQUIRED
    return "agent_error"


def _input_paths(raw_input: Any) -> list[str]:
    fields = raw_input if isinstance(raw_input, dict) else {}
    found = (fields.get(name) for name in ("file_path", "path", "absolute_path", "notebook_path"))
    return [path for path in found if isinstance(path, str)]


class TurnReader:
    """Follows the events of one conversation; call ``begin`` before each turn."""

    def __init__(self, host: Host, asked: str | None):
        """``asked``: the conversation to continue, None for a new one."""
        self.named: str | None = None
        """The conversation's id as the agent reports it; None before it does."""
        self.mismatch: str = ""
        """A sentence, once the agent is in a conversation other than the expected one; later events are ignored."""
        self.over = asyncio.Event()
        """Set when the turn is over: ``ended``, ``failed`` or ``mismatch`` has the outcome."""
        self.ended: TurnEnded | None = None
        self.failed: TurnErrored | None = None
        self._host, self._asked = host, asked

    def begin(self) -> None:
        """Forget the result of the last turn."""
        self.over.clear()
        self.ended = self.failed = None

    async def handle(self, events: Iterable[CliEvent]) -> None:
        """Handle the events of one line."""
        for event in events:
            if self.mismatch:
                return
            match event:
                case ConversationNamed():
                    await self._name(event.conversation_id)
                case JournalLine():
                    self._host.record(event.kind, **event.body)
                case TurnEnded():
                    await self._end(event)
                case TurnErrored():
                    self.failed = event
                    self.over.set()

    async def _name(self, conversation_id: str) -> None:
        if not conversation_id or conversation_id == self.named:
            return
        # The first name must be the requested conversation's; each later name must be the same again.
        expected = self.named or self._asked
        if expected is not None and conversation_id != expected:
            self.mismatch = "The agent continued in a conversation other than the requested one."
            self.over.set()
            return
        await self._host.keep_token(conversation_id)
        self.named = conversation_id

    async def _end(self, ended: TurnEnded) -> None:
        # Saved before the turn counts as over: the next start may resume at exactly this message.
        if self.named and ended.last_message_uuid:
            await self._host.keep_token(self.named, ended.last_message_uuid)
        self.ended = ended
        self.over.set()


_ERRORS: Final[Mapping[str, re.Pattern[str]]] = {
    # Its only machine-readable report needs a capability of one client, which would cost the output of its commands.
    "@agentclientprotocol/codex-acp": re.compile(
        r"(?:unexpected status \d{3}\b|exceeded retry limit, last status: |stream disconnected before completion: "
        r"|[Cc]onnection failed: |Selected model is at capacity\.|We're currently experiencing high demand"
        r"|Quota exceeded\.|Codex ran out of room in the model's context window|internal error; agent loop died)"
    ),
}
"""How the errors begin that an agent reports as text, by the name that the agent reports."""


def error_in_text(agent_name: str, update: Mapping[str, Any]) -> str:
    """Return the error that an update consists of, or an empty string.

    Such an update is the whole error and an empty line, unlike a model's text, which comes in pieces.
    """
    pattern, content = _ERRORS.get(agent_name), update.get("content")
    if pattern is None or update.get("sessionUpdate") != "agent_message_chunk" or not isinstance(content, dict):
        return ""
    text = content.get("text")
    if not isinstance(text, str) or not text.endswith("\n\n"):
        return ""
    if pattern.match(text):
        return text.strip()
    return ""


def agent_ended(message: str, stderr: str) -> StartFailed:
    """Return the failure of a start whose agent ended; its last output shows whether it requires a login."""
    if LOGIN_PATTERN.search(stderr):
        return StartFailed(Code.AUTH_REQUIRED, stderr[-1000:], permanent=True)
    return StartFailed(Code.AGENT_EXITED, f"{message}: {stderr[-1000:]}" if stderr else message)


PERMISSION_METHOD: Final = "session/request_permission"
QUESTION_METHOD: Final = "elicitation/create"
QUESTION_COMPLETED: Final = "elicitation/complete"
QUESTION_CAPABILITIES: Final[dict[str, Any]] = {"form": {}, "url": {}}
"""What ``initialize`` advertises: both modes. Agents ask in no mode that is not listed."""
_TITLE_LIMIT: Final = 300


async def ask_permission(host: Host, params: Any, sub_agent: str = "") -> dict[str, Any]:
    """Ask for a permission and return the result of the request; raises RpcError if it is invalid.

    ``sub_agent`` is the name of the sub-agent that asks; empty for the agent itself.
    """
    try:
        asked = parse_permission_request(params)
    except ValueError as error:
        text = f"the agent asked for a permission that nobody could answer, so it was refused: {error}"
        host.record(JournalKind.LOG, level="warning", text=text, data={})
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
    asked["tool_call"] |= {"sub_agent": sub_agent} if sub_agent else {}
    option_id = await host.ask_permission(asked)
    if option_id is None:
        outcome = {"outcome": "cancelled"}
    else:
        outcome = {"outcome": "selected", "optionId": option_id}
    return {"outcome": outcome}


async def ask_question(host: Host, params: Any, sub_agent: str = "") -> dict[str, Any]:
    """Ask a person and return the result of the request; raises RpcError if the question is invalid.

    ``sub_agent`` is the name of the sub-agent that asks; empty for the agent itself.
    """
    asked = params if isinstance(params, dict) else {}
    try:
        if not isinstance(asked.get("sessionId"), str) and asked.get("requestId") is None:
            raise ValueError("a question belongs to a session or to a request")
        question = parse_question(asked)
    except ValueError as error:
        text = f"the agent asked a question that cannot be shown, so it was refused: {error}"
        host.record(JournalKind.LOG, level="warning", text=text, data={})
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
    title = (question.get("schema") or {}).get("title") or question["message"]
    tool_call = {
        "tool_call_id": _tool_call_id(asked) or "",
        "title": title[:_TITLE_LIMIT],
        "tool_kind": "question",
        **({"sub_agent": sub_agent} if sub_agent else {}),
    }
    action, content = await host.ask_question({"tool_call": tool_call, "question": question})
    is_form = action == questions.ACCEPT and question["mode"] == questions.FORM
    if is_form:
        return {"action": action, "content": dict(content)}
    return {"action": action}


def asks_in_own_form(method: str) -> bool:
    """Whether an extension of an agent asks its user something, like grok's ``_x.ai/ask_user_question``."""
    return method.startswith("_") and method.endswith("/ask_user_question")


def decline_question(host: Host, params: Any) -> NoReturn:
    """Record what the agent asked in a form of its own, and raise the RpcError that tells the agent what to do."""
    asked = params if isinstance(params, dict) else {}
    several = asked.get("questions")
    each = [*several[:_MAX_OWN_QUESTIONS], asked] if isinstance(several, list) else [asked]
    texts = [one.get("question") for one in each if isinstance(one, dict)]
    said = clean_text(" ".join(text for text in texts if isinstance(text, str)), REASON_LIMIT)
    text = "the agent asked a question in a form of its own, which Kandev cannot show, so it was declined"
    host.record(JournalKind.LOG, level="warning", text=f"{text}: {said}" if said else text, data={})
    raise RpcError(METHOD_NOT_FOUND, "This client does not show such questions. Ask in your answer, and end the turn.")


def usage_of_answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage that the answer to a prompt reports, by ACP or in its ``_meta``; empty if it reports none."""
    meta = result.get("_meta")
    extension = meta if isinstance(meta, dict) else {}
    for usage in (result.get("usage"), extension.get("usage")):
        if isinstance(usage, dict):
            return usage
    return {name: extension[name] for name in _USAGE_IN_META if name in extension}


_MAX_OWN_QUESTIONS: Final = 10
_USAGE_IN_META: Final = ("inputTokens", "outputTokens", "totalTokens", "cachedReadTokens")


def complete_question(host: Host, params: Any) -> bool:
    """Close the question that an ``elicitation/complete`` names; return False if none is open with this id."""
    elicitation_id = params.get("elicitationId") if isinstance(params, dict) else None
    return isinstance(elicitation_id, str) and host.complete_question(elicitation_id)
