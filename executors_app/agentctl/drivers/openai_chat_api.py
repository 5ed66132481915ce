"""The chat completions API: a provider's address, key and request body, its streamed answers, and its errors."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from executors_app.agentctl.conversation_store import USER, ConversationEntry
from executors_app.agentctl.drivers import TurnFailed
from executors_app.agentctl.drivers.failures import stop_reason_text
from executors_app.agentctl.drivers.json_rpc import decode_message
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.agentctl.process.async_io import LineSplitter
from executors_app.machine.process import spawning
from executors_app.wire.protocol import Code

BASE_URL: Final = "OPENAI_BASE_URL"
API_KEY: Final = "OPENAI_API_KEY"
MODEL: Final = "OPENAI_MODEL"
HISTORY_LIMIT: Final = 2 * 1024 * 1024
"""Maximum bytes of text sent with a prompt; older entries are left out, which is logged."""


@dataclass(frozen=True, slots=True)
class ChatProvider:
    """Where prompts are sent; its repr does not show the key."""

    url: str
    model: str
    key: str = field(repr=False)
    proxy: str | None = field(repr=False)
    """May contain a password, so it is hidden as well."""

    @classmethod
    def of(cls, env: Mapping[str, str], model: str | None) -> ChatProvider:
        """Return the provider that an agent profile's environment names; raises ValueError with the reason."""
        base, key = env.get(BASE_URL, "").strip(), env.get(API_KEY, "").strip()
        chosen = model or env.get(MODEL, "")
        parts = _check_base_url(base)
        if not chosen:
            raise ValueError(f"The profile names no model, and {MODEL} is not set.")
        if not key.isascii() or not key.isprintable():
            raise ValueError(f"{API_KEY} contains a character that is not valid in a key.")
        path = f"{parts.path.rstrip('/')}/chat/completions"
        url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        return cls(url, chosen, key, _proxy_for(parts, {**spawning.inherited_environment(), **env}))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self.key:
            return {**headers, "Authorization": f"Bearer {self.key}"}
        return headers

    def without_key(self, text: str) -> str:
        """Return the provider's text for the journal, without the key that it may quote."""
        if self.key:
            return text.replace(self.key, "***")
        return text


def completion_request(model: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the request body of a streamed completion that reports its usage at the end."""
    return {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}


def build_messages(
    entries: Sequence[ConversationEntry], limit: int = HISTORY_LIMIT
) -> tuple[list[dict[str, str]], int]:
    """Return the conversation in the provider's shape, and how many of its oldest entries were left out.

    Roles alternate, because some models reject anything else: two prompts in a row, which remain if a kill prevents an
    answer, are joined. The newest entry is sent whatever its size.
    """
    first, size = len(entries), 0
    while first > 0 and (size := size + len(entries[first - 1].text.encode())) <= limit:
        first -= 1
    first = min(first, len(entries) - 1)
    # Start with a prompt: an answer whose prompt was left out is left out, too.
    while first < len(entries) - 1 and entries[first].role != USER:
        first += 1
    messages: list[dict[str, str]] = []
    for entry in entries[max(first, 0) :]:
        if messages and messages[-1]["role"] == entry.role:
            messages[-1]["content"] += f"\n\n{entry.text}"
        else:
            messages.append({"role": entry.role, "content": entry.text})
    return messages, max(first, 0)


def _check_base_url(base: str) -> SplitResult:
    try:
        parts = urlsplit(base)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise ValueError(f"{BASE_URL} must be the http or https address of a chat completions API.")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{BASE_URL} must not contain a login. Put the key into {API_KEY}.")
    return parts


def _proxy_for(parts: SplitResult, env: Mapping[str, str]) -> str | None:
    """Return the proxy that ``*_proxy`` and ``no_proxy`` select for this URL, as for other programs; None for none."""
    proxies = ((name.casefold(), value) for name, value in env.items() if value)
    named = {name.removesuffix("_proxy"): value for name, value in proxies if name.endswith("_proxy")}
    bypassed = any(_matches_no_proxy(entry.strip(), parts.hostname or "") for entry in named.get("no", "").split(","))
    if bypassed:
        return None
    return named.get(parts.scheme) or named.get("all")


def _matches_no_proxy(entry: str, host: str) -> bool:
    """Whether an entry of ``no_proxy`` matches a host."""
    name = entry.removeprefix("*").removeprefix(".").casefold()
    return entry == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))


EVENT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of one event; lines beyond that are dropped."""
DONE: Final = b"[DONE]"
OVERLOADED: Final = "provider_overloaded"
RATE_LIMITED: Final = "provider_rate_limited"
UNREACHABLE: Final = "provider_unreachable"
CONNECTION_LOST: Final = "provider_connection_lost"
"""These four are the codes of failed turns that may succeed on a retry; all others are final."""
_ERROR_TEXT_LIMIT: Final = 1000
_MAX_RETRY_AFTER: Final = 24 * 3600.0
_BUSY_STATUSES: Final = frozenset({409, 500, 502, 503, 504, 520, 522, 524, 529})
_STOP_REASONS: Final = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence"), "end_turn"),
    **dict.fromkeys(("length", "model_length"), "max_tokens"),
    "content_filter": "refusal",
}
"""The reasons of OpenAI's API and the other words of compatible servers; any other is passed on as it is."""


class ServerSentEvents:
    """Splits a stream of server-sent events into the ``data`` of each event."""

    def __init__(self) -> None:
        self._lines = LineSplitter(EVENT_LIMIT)
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that ``received`` completes."""
        events = []
        for line in self._lines.feed(received):
            text = line.removesuffix(b"\r")
            if not text:
                events += self._finish()
            elif text.startswith(b"data:"):
                self._add_data(text[5:].removeprefix(b" "))
        return events

    def end(self) -> list[bytes]:
        """Return the last event, if the stream ended without the empty line after it."""
        return self.feed(b"\n\n")

    def _add_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= EVENT_LIMIT:
            self._data.append(data)

    def _finish(self) -> list[bytes]:
        data = b"\n".join(self._data)
        self._data, self._size = [], 0
        if data:
            return [data]
        return []


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    """The content of one event, or of a whole answer that was not streamed."""

    text: str = ""
    thought: str = ""
    stop_reason: str = ""
    """Empty while more follows, or if the provider gives none."""
    usage: Mapping[str, Any] | None = None
    error: Any = None


def parse_chunk(data: bytes) -> CompletionChunk | None:
    """Parse the data of an event; return None if it is not a chat completion."""
    chunk = decode_message(data)
    if not isinstance(chunk, dict):
        return None
    choices = chunk.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        choice = choices[0]
    else:
        choice = {}
    message = object_of(choice.get("delta") or choice.get("message"))
    usage = None
    if isinstance(chunk.get("usage"), dict):
        usage = chunk["usage"]
    finish_reason = stop_reason_text(choice.get("finish_reason"))
    return CompletionChunk(
        text=_text_or_empty(message.get("content")),
        # Not in OpenAI's API: providers send a model's thoughts in one of these fields.
        thought=_text_or_empty(message.get("reasoning_content")) or _text_or_empty(message.get("reasoning")),
        stop_reason=_STOP_REASONS.get(finish_reason, finish_reason),
        usage=usage,
        error=chunk.get("error"),
    )


def failure_of_response(status: int, headers: Mapping[str, str], body: bytes) -> TurnFailed:
    """Return the TurnFailed for an error answer."""
    content = decode_message(body)
    error = object_of(content).get("error")
    text = _error_text(error) or body[:_ERROR_TEXT_LIMIT].decode("utf-8", "replace").strip()
    after = parse_retry_after(headers)
    message = f"the provider answered {status}"
    if after is not None:
        message += f" (retry after {after:.0f} s)"
    if text:
        message += f": {text}"
    return TurnFailed(_failure_code(status, _error_names(error)), message[:_ERROR_TEXT_LIMIT], retry_after=after)


def failure_in_stream(error: Any) -> TurnFailed:
    """Return the TurnFailed for an error in the middle of an answer."""
    status, code = 0, None
    if isinstance(error, dict):
        code = error.get("code", error.get("status"))
    if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()):
        status = int(code)
    message = f"the provider interrupted its answer: {_error_text(error) or 'no reason given'}"
    return TurnFailed(_failure_code(status, _error_names(error)), message[:_ERROR_TEXT_LIMIT])


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After`` (a number or a date), at most a day; None if it is missing or invalid."""
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        moment = email.utils.parsedate_tz(value)
        if moment is None:
            return None
        seconds = email.utils.mktime_tz(moment) - time.time()
    if math.isfinite(seconds):
        return min(max(seconds, 0.0), _MAX_RETRY_AFTER)
    return None


def _failure_code(status: int, names: str) -> str:
    """Return the code of a failed turn. An exhausted quota comes first: it is a 429, too, but waiting does not help."""
    if "insufficient_quota" in names or status == 402:
        return "quota_exhausted"
    if status == 429 or "rate_limit" in names:
        return RATE_LIMITED
    if status == 408:
        return UNREACHABLE
    if status in _BUSY_STATUSES or "overloaded" in names or "server_error" in names:
        return OVERLOADED
    if status in (401, 403):
        return Code.AUTH_REQUIRED
    return "agent_error"


def _error_names(error: Any) -> str:
    if isinstance(error, dict):
        return f"{error.get('type')} {error.get('code')}".casefold()
    return ""


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message")
    if isinstance(error, str):
        return error.strip()
    return ""


def _text_or_empty(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ""
