"""Observe containers, follow the engine's exit events, and end and remove containers after proof of ownership."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.engine import Container, Engine, EngineRefused, open_engine
from executors_app.runtimes.containers.launch import MAX_HELPER_SECONDS, container_url
from executors_app.runtimes.containers.sites import Site
from executors_app.runtimes.deployment_labels import deployment_labels
from executors_app.wire.errors import AgentctlForeign, ExecutorError
from executors_app.wire.executions import ExecutionFacts, ExitEvent, Observation, Observed, Orphan

ENDED_STATUSES: Final = frozenset({"created", "exited", "dead"})
"""Statuses of a container in which nothing runs."""


@dataclass(frozen=True, slots=True)
class ContainerListing:
    """The result of listing an engine's containers."""

    containers: Mapping[str, Container] = field(default_factory=dict)
    """Containers by execution id, for the requested executions only."""
    engine_id: str = ""


def list_containers(engine: Engine, executions: Sequence[ExecutionFacts]) -> ContainerListing:
    """List the executions' containers; blocks, writes nothing. Raises RuntimeUnavailable, EngineRefused."""
    listed = {one.labels.get(sites.EXECUTION_LABEL, ""): one for one in engine.containers(deployment_labels())}
    found: dict[str, Container] = {}
    for execution in executions:
        container = listed.get(execution.id)
        if container is None or not sites.is_owned(container.labels, execution.id, execution.session_id):
            continue
        # A list does not show how a container ended, so it is inspected; it may have been removed meanwhile.
        if container.status in ENDED_STATUSES:
            closely = engine.find(container.id)
        else:
            closely = container
        if closely is not None:
            found[execution.id] = closely
    absent = len(found) < len(executions)
    return ContainerListing(found, engine.identity() if absent else "")


async def judge_execution(site: Site, execution: ExecutionFacts, known: ContainerListing, answer: Any) -> Observation:
    """Return the observation of one execution; ``answer`` is its status, the error instead, or None if not polled."""
    container = known.containers.get(execution.id)
    if container is None:
        # Only the engine that ran the container can report its absence; the answer of another engine proves nothing.
        had = execution.state.get("engine")
        if not (had == known.engine_id if had else site.is_gone(execution)):
            return Observation.unknown("other_host")
        return await _dead_observation(site, execution, None, "container_gone")
    if container.status in ENDED_STATUSES:
        why = "out_of_memory" if container.out_of_memory else "container_stopped"
        return await _dead_observation(site, execution, container, why)
    if answer is None or isinstance(answer, ExecutorError):
        return Observation.unknown(_unknown_reason(container, answer))
    url = container_url(container, site.host) or ""
    state = {**execution.state, "container": container.id}
    return Observation(Observed.ALIVE, report=answer, url=url, seen_at=datetime.now(UTC), state=state)


async def _dead_observation(
    site: Site, execution: ExecutionFacts, container: Container | None, reason: str
) -> Observation:
    try:
        state, why = await asyncio.to_thread(site.workspace_state, execution, container)
    except ExecutorError:
        return Observation.unknown("runtime_unavailable")
    return Observation.dead(reason, state, why)


def _unknown_reason(container: Container, answer: ExecutorError | None) -> str:
    if container.status != "running":
        return f"container_{container.status}"
    if isinstance(answer, AgentctlForeign):
        return "foreign"
    if answer is None:
        return "no_answer"
    return str(answer.details.get("reason", answer.code))


_GRACE: Final = 10.0


def list_orphans(engine: Engine, known: Collection[str]) -> list[Orphan]:
    """List our containers whose execution is not in ``known``, and abandoned helpers. Blocks."""
    found = engine.containers(deployment_labels())
    if any(sites.is_helper(one.labels) for one in found):
        oldest = engine.now() - MAX_HELPER_SECONDS
    else:
        oldest = 0.0
    listed = []
    for one in found:
        left = sites.is_helper(one.labels) and one.created < oldest
        execution_id = sites.labelled_execution(one.labels)
        if left or execution_id not in known:
            listed.append(Orphan(id=one.name, execution_id=execution_id, status=one.status, is_helper=left))
    return listed


def end_container(engine: Engine, execution: ExecutionFacts) -> bool:
    """Stop an execution's container and release its addresses; False if it is not that execution's. Blocks."""
    name = sites.container_name(execution.id)
    container = engine.find(name)
    if container is None:
        return True
    if not sites.is_owned(container.labels, execution.id, execution.session_id):
        return False
    if container.status == "paused":
        engine.unpause(container.id)  # frozen processes cannot react to TERM
    engine.stop(container.id, _GRACE)
    left = engine.find(name)
    if left is not None and left.status not in ENDED_STATUSES:
        return False
    engine.drop_network(name, container.id)
    return True


def remove_container(engine: Engine, orphan: Orphan) -> bool:
    """Stop and remove an orphan if it is still what was listed; True if nothing is left. Blocks."""
    container = engine.find(orphan.id)
    if container is None:
        return True
    owned = deployment_labels().items() <= container.labels.items()
    if orphan.is_helper and not sites.is_helper(container.labels):
        return False  # an execution's own container, which its row still needs
    if not owned or not orphan.execution_id or sites.labelled_execution(container.labels) != orphan.execution_id:
        return False
    engine.stop(container.id, _GRACE)
    engine.drop_network(container.name, container.id)
    try:
        engine.remove(container.id)
    except EngineRefused:
        return False
    return True


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
    asked = {"since": since, "until": until, "filters": orjson.dumps(wanted).decode()}
    lines = engine.follow("/events", asked)
    while (line := engine.ask(lambda _: next(lines, None))) is not None:
        if line:
            yield orjson.loads(line)
