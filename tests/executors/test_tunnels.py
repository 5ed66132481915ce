"""Tunnels of the client leave no socket behind, whenever they are cancelled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from executors_app.agentctl_client import tunnels


class QuietTunnel:
    """An open tunnel through which nothing comes; ``send`` never ends."""

    def __init__(self) -> None:
        self.websocket: Any = self._nothing()
        self.sending = asyncio.Event()
        self.is_closed = False

    async def send(self, chunk: bytes) -> None:
        """Hang, also while it is cancelled for the first time."""
        self.sending.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    def received(self, message: Any) -> bytes:
        """Return nothing: no message ever comes."""
        return b""

    async def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True

    async def _nothing(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield


@pytest.fixture
def tunnel(monkeypatch: pytest.MonkeyPatch) -> QuietTunnel:
    made = QuietTunnel()

    async def open_at_once(host: str, port: int) -> QuietTunnel:
        return made

    monkeypatch.setattr(tunnels, "_open", open_at_once)
    return made


@pytest.fixture
async def pairs(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Return a list that gets every socket made in pairs from now on, so none of the event loop."""
    made: list[socket.socket] = []
    original = socket.socketpair

    def record(*arguments: Any) -> tuple[socket.socket, socket.socket]:
        pair = original(*arguments)
        made.extend(pair)
        return pair

    monkeypatch.setattr(socket, "socketpair", record)
    return made


async def test_cancelled_opening_closes_both_ends(tunnel: QuietTunnel, pairs: list[socket.socket]) -> None:
    opening = asyncio.create_task(tunnels.open_tunnel("host.pod", 8700))
    await asyncio.sleep(0)
    assert len(pairs) == 2, "it is cancelled after the ends were made"
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    (relay,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("tunnel into"))
    await asyncio.wait([relay])
    assert [end.fileno() for end in pairs] == [-1, -1]
    assert tunnel.is_closed


async def test_relay_that_is_cancelled_again_while_it_ends_closes_its_end(tunnel: QuietTunnel) -> None:
    ours, relay = await tunnels.open_tunnel("host.pod", 8700)
    with ours:
        ours.send(b"a request")
        await tunnel.sending.wait()
        relay.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not relay.done(), "it waits for what it was sending"
        relay.cancel()
        await asyncio.wait([relay])
        assert ours.recv(1) == b""
    assert tunnel.is_closed
