"""When a reader of the event stream acknowledges what it has stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import orjson

from executors_app.agentctl_client.streams import EventStream


class _Socket:
    """A WebSocket that delivers frames of journal lines and records what is sent."""

    close_code = None

    def __init__(self, *frames: list[dict[str, Any]]):
        self.frames, self.sent = list(frames), list[str]()

    async def receive(self) -> Any:
        data = b"\n".join(map(orjson.dumps, self.frames.pop(0)))
        return SimpleNamespace(type=aiohttp.WSMsgType.BINARY, data=data)

    async def send_str(self, text: str) -> None:
        self.sent.append(text)


def _line(seq: int, text: str = "piece") -> dict[str, Any]:
    return {"seq": seq, "epoch": "e", "ts": 1.5, "kind": "message.agent", "text": text}


def _stream(*frames: list[dict[str, Any]]) -> tuple[EventStream, list[str]]:
    socket = _Socket(*frames)
    return EventStream(cast("aiohttp.ClientWebSocketResponse", socket)), socket.sent


async def test_a_few_pieces_of_text_wait_for_a_later_acknowledgement() -> None:
    stream, sent = _stream([_line(1)], [_line(2)], [_line(3)])
    for seq in (1, 2):
        await anext(stream)
        await stream.ack(seq, now=False)
    assert sent == []

    await anext(stream)
    await stream.ack(3)

    assert sent == ['{"ack":3}']


async def test_much_text_is_acknowledged_without_being_asked_to() -> None:
    stream, sent = _stream([_line(1, "x" * 20_000)], [_line(2)])
    for seq in (1, 2):
        await anext(stream)
        await stream.ack(seq, now=False)

    assert sent == ['{"ack":1}']


async def test_lines_that_arrive_before_an_acknowledgement_get_their_own() -> None:
    stream, sent = _stream([_line(1, "x" * 20_000)], [_line(2, "x" * 20_000)])
    await anext(stream)
    await anext(stream)

    await stream.ack(1, now=False)
    await stream.ack(2, now=False)

    assert sent == ['{"ack":1}', '{"ack":2}']
