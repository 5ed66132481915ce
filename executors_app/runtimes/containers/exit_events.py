"""Follow the exits of sessions' containers that an engine reports."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import orjson

from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.engine import Engine, open_engine
from executors_app.runtimes.deployment_labels import deployment_labels
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExitEvent

log = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 20
"""Seconds that one connection lasts, so that a hanging engine is noticed soon."""
_EXIT_ACTIONS: Final = ("die", "oom", "destroy")
_RETRY_DELAYS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between attempts; the last value repeats."""
CHECK_ALL: Final = ExitEvent("")

EventHandler = Callable[[ExitEvent], None]


async def exit_events(address: EngineAddress) -> AsyncIterator[ExitEvent]:
    """Yield exits of sessions' containers, or ``CHECK_ALL`` if some may have been missed, without end."""
    events_queue: asyncio.Queue[ExitEvent] = asyncio.Queue()
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def deliver(event: ExitEvent) -> None:
        with suppress(RuntimeError):  # the loop may be closed already
            loop.call_soon_threadsafe(events_queue.put_nowait, event)

    # A daemon thread: a connection that waits for an event cannot be interrupted.
    threading.Thread(target=_listen, args=(address, deliver, stopped), name="deaths of containers", daemon=True).start()
    try:
        while True:
            yield await events_queue.get()
    finally:
        stopped.set()


def _listen(address: EngineAddress, deliver: EventHandler, stopped: threading.Event) -> None:
    stream, failures = _EventStream(address), 0
    while not stopped.is_set():
        try:
            for event in stream.window():
                if stopped.is_set():
                    return
                deliver(event)
            if failures:
                deliver(CHECK_ALL)  # events from before an engine's restart are lost
            failures = 0
        except (ExecutorError, ValueError, KeyError) as error:
            if not failures:
                log.warning("cannot follow the Docker engine's events: %s", error)
            stopped.wait(_RETRY_DELAYS[min(failures, len(_RETRY_DELAYS) - 1)])
            failures += 1


class _EventStream:
    """One engine's events, with the time up to which all were delivered."""

    def __init__(self, address: EngineAddress):
        self._address = address
        self._since = ""
        self._delivered: set[tuple[int, str, str]] = set()
        """Events at the time where the next connection starts: the engine sends them again."""

    def window(self) -> Iterator[ExitEvent]:
        """Yield the events of one connection; raises ExecutorError."""
        with open_engine(self._address, WINDOW_SECONDS + 5) as engine:
            now = engine.now()
            for entry in _events(engine, self._since or f"{now:.6f}", f"{now + WINDOW_SECONDS:.6f}"):
                if (event := self._parse_event(entry)) is not None:
                    yield event
            # Without any event so far, the next connection starts where this one did, so that it can miss none.
            if not self._delivered:
                self._since = f"{now:.6f}"

    def _parse_event(self, entry: dict[str, Any]) -> ExitEvent | None:
        at, about = int(entry["timeNano"]), entry["Actor"]
        mark = (at, str(entry["Action"]), str(about["ID"]))
        if mark in self._delivered:
            return None
        self._delivered = {one for one in self._delivered if one[0] == at} | {mark}
        self._since = f"{at // 10**9}.{at % 10**9:09d}"
        labels = about.get("Attributes") or {}
        if labels.get(sites.EXECUTION_LABEL):
            session_id = labels.get(sites.SESSION_LABEL)
        else:
            session_id = ""
        if session_id:
            return ExitEvent(session_id, mark[2], ended=mark[1] != "oom")
        return None


def _events(engine: Engine, since: str, until: str) -> Iterator[dict[str, Any]]:
    labels = [f"{name}={value}" for name, value in deployment_labels().items()]
    wanted = {"type": ["container"], "event": list(_EXIT_ACTIONS), "label": labels}
    params = {"since": since, "until": until, "filters": orjson.dumps(wanted).decode()}
    lines = engine.follow("/events", params)
    while (line := engine.ask(lambda _: next(lines, None))) is not None:
        if line:
            yield orjson.loads(line)
