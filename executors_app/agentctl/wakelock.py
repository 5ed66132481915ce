"""Keep a sprite awake while its agent or a job runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp

logger = logging.getLogger(__name__)

_WAKELOCK_URL: Final = "http://sprite/v1/tasks/"
_WAKELOCK_EXPIRY: Final = "5m"
_REFRESH_INTERVAL: Final = 60.0
_RETRY_DELAY: Final = 10.0
_CHECK_INTERVAL: Final = 1.0
_TIMEOUT: Final = 10.0


class Wakelock:
    """Keeps a sprite awake while ``wanted`` returns True, which is checked once a second.

    ``socket`` is where the sprite takes such requests; ``name`` names the task that holds it.
    """

    def __init__(self, socket: Path, name: str, wanted: Callable[[], bool]):
        self._socket, self._url, self._wanted = socket, _WAKELOCK_URL + name, wanted
        self._is_held = False
        self._refresh_at = self._retry_at = 0.0

    async def run(self) -> None:
        """Run until cancelled, then release the wakelock."""
        try:
            while True:
                await self._update()
                await asyncio.sleep(_CHECK_INTERVAL)
        finally:
            if self._is_held:
                await self._request("DELETE")

    async def _update(self) -> None:
        now, wanted = asyncio.get_running_loop().time(), self._wanted()
        is_news = wanted != self._is_held
        if now < self._retry_at or not (is_news or (wanted and now >= self._refresh_at)):
            return
        if wanted:
            is_confirmed = await self._request("PUT")
        else:
            is_confirmed = await self._request("DELETE")
        if is_confirmed:
            self._is_held, self._refresh_at = wanted, now + _REFRESH_INTERVAL
        else:
            self._retry_at = now + _RETRY_DELAY

    async def _request(self, method: str) -> bool:
        """Acquire (PUT) or release (DELETE) the wakelock; return whether the sprite confirmed it."""
        body = None
        if method == "PUT":
            body = {"expire": _WAKELOCK_EXPIRY}
        try:
            async with (
                asyncio.timeout(_TIMEOUT),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket))) as http,
                http.request(method, self._url, json=body) as answer,
            ):
                return answer.status < 300 or (method == "DELETE" and answer.status == 404)
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            logger.warning("the sprite did not accept the request to stay awake: %s", error)
            return False
