"""Keeping the machine awake while an agent lives, where machines fall asleep by themselves.

A sprite pauses after half a minute without traffic, and what an agent waits for is no traffic: a restart of the
control plane would freeze it. While a *task* is registered with the sprite it stays awake
(https://docs.sprites.dev/keeping-sprites-running: ``PUT`` and ``DELETE /v1/tasks/:name`` on its management socket).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import aiohttp

logger = logging.getLogger(__name__)

_URL: Final = "http://sprite/v1/tasks/"
_EXPIRE: Final = "5m"
_REFRESH: Final = 60.0
_AGAIN: Final = 10.0
_LOOK: Final = 1.0
_TIMEOUT: Final = 10.0


class Hold:
    """Asks ``wanted`` once a second, and holds the machine behind ``socket`` as long as it says so.

    ``name`` is that of the task.
    """

    def __init__(self, socket: Path, name: str, wanted: Callable[[], bool]):
        self._socket, self._url, self._wanted = socket, _URL + name, wanted
        self._is_held = False
        self._refresh_at = self._again_at = 0.0

    async def run(self) -> None:
        """Until it is cancelled; the hold is given back then."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(_LOOK)
        finally:
            if self._is_held:
                await self._say("DELETE")

    async def _look(self) -> None:
        now, wanted = asyncio.get_running_loop().time(), self._wanted()
        is_news = wanted != self._is_held
        if now < self._again_at or not (is_news or (wanted and now >= self._refresh_at)):
            return
        if await self._say("PUT" if wanted else "DELETE"):
            self._is_held, self._refresh_at = wanted, now + _REFRESH
        else:
            self._again_at = now + _AGAIN

    async def _say(self, method: str) -> bool:
        """Whether the machine has heard it; one that has not is told again."""
        body = {"expire": _EXPIRE} if method == "PUT" else None
        try:
            async with (
                asyncio.timeout(_TIMEOUT),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket))) as http,
                http.request(method, self._url, json=body) as answer,
            ):
                return answer.status < 300 or (method == "DELETE" and answer.status == 404)
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            logger.warning("this machine cannot be told to stay awake: %s", error)
            return False
