"""The deaths of containers as their engine tells them: an event stream that forgets nothing between two connections.

A connection lasts for a while and is made anew, from the last moment that was seen. Where that fails, whatever may
have been missed is said by one *look at all*; the engine then costs a try now and again, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import orjson

from executors_app.containers import names
from executors_app.containers.address import EngineAddress
from executors_app.containers.engine import Engine, connected
from executors_app.domain import Death
from executors_app.errors import ExecutorError

log = logging.getLogger(__name__)
WINDOW: Final = 20
"""Seconds that one connection lasts; an engine that hangs is noticed soon after."""
_TELLS: Final = ("die", "oom", "destroy")
_RESTS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between tries, the last one for ever."""
LOOK_AT_ALL: Final = Death("")

Tell = Callable[[Death], None]


async def deaths(address: EngineAddress) -> AsyncIterator[Death]:
    """Deaths of sessions' containers, or `LOOK_AT_ALL`; for ever. Ends with its consumer."""
    heard: asyncio.Queue[Death] = asyncio.Queue()
    loop, over = asyncio.get_running_loop(), threading.Event()

    def tell(death: Death) -> None:
        with suppress(RuntimeError):  # the loop was closed over us
            loop.call_soon_threadsafe(heard.put_nowait, death)

    # A daemon, as a connection that waits for an event cannot be told to end.
    threading.Thread(target=_listen, args=(address, tell, over), name="deaths of containers", daemon=True).start()
    try:
        while True:
            yield await heard.get()
    finally:
        over.set()


def _listen(address: EngineAddress, tell: Tell, over: threading.Event) -> None:
    stream, failures = _Stream(address), 0
    while not over.is_set():
        try:
            for death in stream.window():
                if over.is_set():
                    return
                tell(death)
            if failures:
                tell(LOOK_AT_ALL)  # what an engine told before it was restarted is not told again
            failures = 0
        except (ExecutorError, ValueError, KeyError) as error:
            if not failures:
                log.warning("no news of containers: %s", error)
            over.wait(_RESTS[min(failures, len(_RESTS) - 1)])
            failures += 1


class _Stream:
    """One engine's, with the moment up to which everything was told."""

    def __init__(self, address: EngineAddress):
        self._address = address
        self._since = ""
        self._told: set[tuple[int, str, str]] = set()
        """Of the moment that the next connection begins at: it is told once more."""

    def window(self) -> Iterator[Death]:
        """What is told in one connection; ExecutorError."""
        with connected(self._address, WINDOW + 5) as engine:
            now = _clock_of(engine)
            for event in _events(engine, self._since or f"{now:.6f}", f"{now + WINDOW:.6f}"):
                if (death := self._heard(event)) is not None:
                    yield death
            if not self._told:
                self._since = f"{now:.6f}"

    def _heard(self, event: dict[str, Any]) -> Death | None:
        at, about = int(event["timeNano"]), event["Actor"]
        mark = (at, str(event["Action"]), str(about["ID"]))
        if mark in self._told:
            return None
        self._told = {one for one in self._told if one[0] == at} | {mark}
        self._since = f"{at // 10**9}.{at % 10**9:09d}"
        labels = about.get("Attributes") or {}
        session_id = labels.get(names.SESSION) if labels.get(names.EXECUTION) else ""
        return Death(session_id, mark[2], ended=mark[1] != "oom") if session_id else None


def _clock_of(engine: Engine) -> float:
    """Seconds since the epoch, by the engine's own clock."""
    told = engine.ask(lambda client: client.info())["SystemTime"]
    return datetime.fromisoformat(told).timestamp()


def _events(engine: Engine, since: str, until: str) -> Iterator[dict[str, Any]]:
    labels = [f"{name}={value}" for name, value in names.ours().items()]
    wanted = {"type": ["container"], "event": list(_TELLS), "label": labels}
    asked = {"since": since, "until": until, "filters": orjson.dumps(wanted).decode()}
    lines = engine.follow("/events", asked)
    while (line := engine.ask(lambda _: next(lines, None))) is not None:
        if line:
            yield orjson.loads(line)
