"""Pages that follow sessions through the proxy: after a broken socket, each asks for what it lacks."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

import aiohttp

from tests.drills.deployment import Session
from tests.three_hosts.site import Site

SERVICE_RESTART: Final = 1012


class Follower:
    """What one page has received of a session, and how its sockets have ended."""

    def __init__(self, session: Session):
        self.session = session
        self.seqs: list[int] = []
        self.is_connected = False
        self.openings = 0
        self.codes: list[int | None] = []
        """How the sockets were closed, the first one first; None: without a word."""


class Followers:
    """Follow the sessions from a thread until the block ends."""

    def __init__(self, site: Site, sessions: Sequence[Session]):
        self._site = site
        self.all = [Follower(session) for session in sessions]
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._run, name="followers")
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(60)

    def are_connected(self) -> bool:
        """Return whether every page has a socket."""
        return all(one.is_connected for one in self.all)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        async def follow_all() -> None:
            self._task = asyncio.ensure_future(self._follow_each())
            with suppress(asyncio.CancelledError):
                await self._task
            await self._close_connections()

        self._loop.run_until_complete(follow_all())
        self._loop.close()

    async def _close_connections(self) -> None:
        """Wait until TLS has closed what the sockets have left: only the loop's own pipe stays."""
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while len(self._selector.get_map()) > 1:  # noqa: ASYNC110 - TLS has no event for it
                    await asyncio.sleep(0.05)

    async def _follow_each(self) -> None:
        await asyncio.gather(*map(self._follow, self.all))

    async def _follow(self, follower: Follower) -> None:
        while True:
            try:
                await self._listen(follower)
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            finally:
                follower.is_connected = False
            await asyncio.sleep(0.2)

    async def _listen(self, follower: Follower) -> None:
        after = follower.seqs[-1] if follower.seqs else 0
        url = f"{self._site.url.replace('https', 'wss')}/ws/sessions/{follower.session.id}/?after={after}"
        headers = {"Authorization": f"Token {self._site.seeded['token']}"}
        socket: aiohttp.ClientWebSocketResponse
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(url, headers=headers, ssl=self._site.proxy.trust, heartbeat=10) as socket,
        ):
            follower.is_connected = True
            follower.openings += 1
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break  # nobody has answered for a while: its machine may be gone
                body: dict[str, Any] = message.json()
                if body["type"] == "event":
                    follower.seqs.append(body["seq"])
                    await socket.send_json({"type": "ack", "session": follower.session.id, "seq": body["seq"]})
            follower.codes.append(socket.close_code)
