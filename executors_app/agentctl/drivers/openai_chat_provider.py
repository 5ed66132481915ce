"""The far end of a chat: its address and key, and what it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from executors_app.agentctl import child_environment
from executors_app.agentctl.conversations import USER, Entry

BASE_URL: Final = "OPENAI_BASE_URL"
API_KEY: Final = "OPENAI_API_KEY"
MODEL: Final = "OPENAI_MODEL"
HISTORY_LIMIT: Final = 2 * 1024 * 1024
"""Bytes of text that go out with a prompt, at most; what is older is left out, and that is said."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Where prompts go; the key is in no repr."""

    url: str
    model: str
    key: str = field(repr=False)
    proxy: str | None = field(repr=False)
    """May hold a password too."""

    @classmethod
    def of(cls, env: Mapping[str, str], model: str | None) -> Provider:
        """The provider that an agent profile's environment names; ValueError says what is wrong with it."""
        base, key = env.get(BASE_URL, "").strip(), env.get(API_KEY, "").strip()
        chosen = model or env.get(MODEL, "")
        parts = _checked(base)
        if not chosen:
            raise ValueError(f"The profile names no model, and {MODEL} is not set.")
        if not key.isascii() or not key.isprintable():
            raise ValueError(f"{API_KEY} holds a character that no key has.")
        path = f"{parts.path.rstrip('/')}/chat/completions"
        url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        return cls(url, chosen, key, _proxy_for(parts, {**child_environment.inherited(), **env}))

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        told = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        return {**told, "Authorization": f"Bearer {self.key}"} if self.key else told

    def without_key(self, text: str) -> str:
        """Words of the provider, which may hold the key, for a journal."""
        return text.replace(self.key, "***") if self.key else text


def request_body(model: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """A streamed completion, with what it cost at its end."""
    return {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}


def messages_of(entries: Sequence[Entry], limit: int = HISTORY_LIMIT) -> tuple[list[dict[str, str]], int]:
    """The conversation as the provider takes it, and how many of its oldest entries were left out.

    Sides take turns in it, for some models refuse anything else: an answer that a kill has cut off
    leaves two prompts in a row, and they become one. The newest entry goes out whatever its size.
    """
    first, size = len(entries), 0
    while first > 0 and (size := size + len(entries[first - 1].text.encode())) <= limit:
        first -= 1
    first = min(first, len(entries) - 1)
    while first < len(entries) - 1 and entries[first].role != USER:
        first += 1
    messages: list[dict[str, str]] = []
    for entry in entries[max(first, 0) :]:
        if messages and messages[-1]["role"] == entry.role:
            messages[-1]["content"] += f"\n\n{entry.text}"
        else:
            messages.append({"role": entry.role, "content": entry.text})
    return messages, max(first, 0)


def _checked(base: str) -> SplitResult:
    try:
        parts = urlsplit(base)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named:
        raise ValueError(f"{BASE_URL} must be the http or https address of an API of chat completions.")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{BASE_URL} must hold no login; the key belongs into {API_KEY}.")
    return parts


def _proxy_for(parts: SplitResult, env: Mapping[str, str]) -> str | None:
    """As every other program in that environment would choose it."""
    named = {name.casefold().removesuffix("_proxy"): value for name, value in env.items() if value and _is_proxy(name)}
    bypassed = any(_names(entry.strip(), parts.hostname or "") for entry in named.get("no", "").split(","))
    return None if bypassed else named.get(parts.scheme) or named.get("all")


def _names(entry: str, host: str) -> bool:
    """Whether an entry of ``no_proxy`` means a host."""
    name = entry.removeprefix("*").removeprefix(".").casefold()
    return entry == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))


def _is_proxy(name: str) -> bool:
    return name.casefold().endswith("_proxy")
