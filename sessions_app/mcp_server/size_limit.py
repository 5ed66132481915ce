"""Read the body of an MCP request, and refuse one that is too large before anything parses or validates it.

The SDK parses and validates on the event loop, so the limit is what a call needs: 64 KiB, and the text of a prompt
besides. It is checked in a thread, in time that is linear in the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from sessions_app.api.base_views import MAX_BODY
from sessions_app.api.errors import PayloadTooLarge

MAX_MESSAGE: Final = 64 * 1024
"""Bytes of one JSON-RPC message without the texts of ``TEXT_ARGUMENTS``."""
TEXT_ARGUMENTS: Final = frozenset({"prompt", "text"})
"""Arguments with a limit of their own, which is that of a prompt."""

Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientDisconnected(Exception):
    """The client has disconnected before its request was complete."""


async def receive_message(receive: Receive) -> Receive:
    """Read the whole body, check its size, and return a ``receive`` that delivers it again.

    Raises PayloadTooLarge, and ClientDisconnected.
    """
    body = await _read_body(receive)
    if len(body) > MAX_MESSAGE:
        body = await asyncio.to_thread(_checked, body)
    is_delivered = False

    async def receive_again() -> dict[str, Any]:
        nonlocal is_delivered
        if is_delivered:
            return await receive()
        is_delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _read_body(receive: Receive) -> bytes:
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise PayloadTooLarge
        more = bool(message.get("more_body"))
    return b"".join(parts)


def _checked(body: bytes) -> bytes:
    """Return a large message as it was checked; raise PayloadTooLarge unless its texts alone make it large."""
    try:
        message = orjson.loads(body)
        arguments = message["params"]["arguments"]
        texts = {name: arguments[name] for name in TEXT_ARGUMENTS if isinstance(arguments.get(name), str)}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise PayloadTooLarge from None
    arguments.update(dict.fromkeys(texts, ""))
    if len(orjson.dumps(message)) > MAX_MESSAGE:
        raise PayloadTooLarge
    arguments.update(texts)
    # Encoded again: whatever else the body had, such as a key that is repeated a million times, is gone.
    return orjson.dumps(message)
