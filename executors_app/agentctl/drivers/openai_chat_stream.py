"""The wire of chat completions: what a streamed answer says piece by piece, and what a refusal means."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import TurnFailed
from executors_app.agentctl.drivers.acp_wire import decode
from executors_app.agentctl.pipes import LineSplitter
from executors_app.agentctl.protocol import Code

EVENT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of one event; what is longer is left out."""
DONE: Final = b"[DONE]"
OVERLOADED: Final = "provider_overloaded"
RATE_LIMITED: Final = "provider_rate_limited"
UNREACHABLE: Final = "provider_unreachable"
CONNECTION_LOST: Final = "provider_connection_lost"
"""Codes of a failed turn that may succeed when it is tried again; every other one is final."""
_SAID_LIMIT: Final = 1000
_LONGEST_WAIT: Final = 24 * 3600.0
_BUSY: Final = frozenset({409, 500, 502, 503, 504, 520, 522, 524, 529})
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


class ServerSentEvents:
    """The ``data`` of each event of a stream; what is too long in it is left out."""

    def __init__(self) -> None:
        self._lines = LineSplitter(EVENT_LIMIT)
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that ``received`` completes."""
        events = []
        for line in self._lines.feed(received):
            text = line.removesuffix(b"\r")
            if not text:
                events += self._finish()
            elif text.startswith(b"data:"):
                self._take_in(text[5:].removeprefix(b" "))
        return events

    def end(self) -> list[bytes]:
        """The last event, where the stream ended without the empty line behind it."""
        return self.feed(b"\n\n")

    def _take_in(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= EVENT_LIMIT:
            self._data.append(data)

    def _finish(self) -> list[bytes]:
        data = b"\n".join(self._data)
        self._data, self._size = [], 0
        return [data] if data else []


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event says; a whole answer that was not streamed is one piece."""

    text: str = ""
    thought: str = ""
    stop_reason: str = ""
    """Empty while there is more to come."""
    usage: Mapping[str, Any] | None = None
    error: Any = None


def piece_of(data: bytes) -> Piece | None:
    """What the data of an event says; None where it is no chat completion."""
    told = decode(data)
    if not isinstance(told, dict):
        return None
    choices = told.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    said = choice.get("delta") or choice.get("message")
    said = said if isinstance(said, dict) else {}
    finish = choice.get("finish_reason")
    return Piece(
        text=_text(said.get("content")),
        thought=_text(said.get("reasoning_content")) or _text(said.get("reasoning")),
        stop_reason=_STOP_REASONS.get(str(finish), "end_turn") if finish else "",
        usage=told["usage"] if isinstance(told.get("usage"), dict) else None,
        error=told.get("error"),
    )


def refusal(status: int, headers: Mapping[str, str], body: bytes) -> TurnFailed:
    """The failed turn that an answer without a completion comes to."""
    told = decode(body)
    error = told.get("error") if isinstance(told, dict) else None
    words = _words_of(error) or body[:_SAID_LIMIT].decode("utf-8", "replace").strip()
    after = retry_after(headers)
    asks = "" if after is None else f" (retry after {after:.0f} s)"
    message = f"the provider answered {status}{asks}{': ' if words else ''}{words}"
    return TurnFailed(_code(status, _names_of(error)), message[:_SAID_LIMIT], retry_after=after)


def refusal_in_stream(error: Any) -> TurnFailed:
    """The failed turn that an error in the middle of an answer comes to."""
    told = error.get("code", error.get("status")) if isinstance(error, dict) else None
    status = int(told) if isinstance(told, int) or (isinstance(told, str) and told.isdecimal()) else 0
    message = f"the provider broke off: {_words_of(error) or 'no reason given'}"
    return TurnFailed(_code(status, _names_of(error)), message[:_SAID_LIMIT])


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until the provider wants to be asked again; None where it does not say, or makes no sense."""
    told = headers.get("Retry-After", "").strip()
    try:
        seconds = float(told)
    except ValueError:
        moment = email.utils.parsedate_tz(told)
        if moment is None:
            return None
        seconds = email.utils.mktime_tz(moment) - time.time()
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else None


def _code(status: int, names: str) -> str:
    """Quota first: it is told as 429 too, and no waiting helps."""
    if "insufficient_quota" in names or status == 402:
        return "quota_exhausted"
    if status == 429 or "rate_limit" in names:
        return RATE_LIMITED
    if status == 408:
        return UNREACHABLE
    if status in _BUSY or "overloaded" in names or "server_error" in names:
        return OVERLOADED
    return Code.AUTH_REQUIRED if status in (401, 403) else "agent_error"


def _names_of(error: Any) -> str:
    return f"{error.get('type')} {error.get('code')}".casefold() if isinstance(error, dict) else ""


def _words_of(error: Any) -> str:
    said = error.get("message") if isinstance(error, dict) else error
    return said.strip() if isinstance(said, str) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
