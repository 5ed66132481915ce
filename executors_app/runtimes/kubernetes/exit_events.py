"""Follow the ends of sessions' Pods in a namespace, and let go those that somebody has deleted.

One watch for each namespace. It settles a deleted Pod as soon as its end is certain: until then its object is kept by
our finalizer, and ``kubectl drain`` waits for it. Where nothing is watched, because no session is attached, a list now
and then does the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from executors_app.agentctl_client.cluster_access import ClusterAddress
from executors_app.runtimes.kubernetes import names, volumes
from executors_app.runtimes.kubernetes.cluster import PODS, Cluster, open_cluster
from executors_app.runtimes.kubernetes.manifests import READ_DEADLINE
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.words import GoneError
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExitEvent

log = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 30
"""Seconds that one watch lasts, so that a hanging API server is noticed soon."""
_RETRY_DELAYS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between attempts; the last value repeats."""
SHORTEST_WINDOW: Final = 1.0
"""Seconds from one watch to the next: some proxies end each one at once, and some servers forget every list."""
CHECK_ALL: Final = ExitEvent("")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of a cluster, the source of the ends of its Pods."""

    cluster: ClusterAddress
    name: str


_followed: Final[Counter[Namespace]] = Counter()
"""How many watches of this process follow a namespace."""


async def settle_namespace(source: Namespace) -> None:
    """Let go the Pods that somebody has deleted and that have ended, and readers that nobody needs any more.

    A namespace that is followed is left to that. Raises nothing: it is tried again at the next interval.
    """
    if _followed[source] > 0:
        return
    try:
        async with open_cluster(source.cluster, source.name) as cluster:
            found, _ = await cluster.list_all(PODS)
            for pod in map(Pod, found):
                if pod.is_deleted and pod.has_finalizer and pod.execution_id:
                    await _settle(cluster, pod)
                elif pod.is_reader and pod.end() and pod.age() > READ_DEADLINE:
                    await volumes.let_go(cluster, pod)  # its control plane was killed
    except (ExecutorError, KeyError, TypeError, ValueError) as error:
        log.info("cannot settle the Pods of the namespace %s: %s", source.name, error)


async def exit_events(source: Namespace) -> AsyncIterator[ExitEvent]:
    """Yield the ends of sessions' Pods, or ``CHECK_ALL`` if some may have been missed, without end."""
    _followed[source] += 1
    try:
        async for event in _follow(source):
            yield event
    finally:
        _followed[source] -= 1


async def _follow(source: Namespace) -> AsyncIterator[ExitEvent]:
    follower, failures = _Follower(source), 0
    while True:
        began = time.monotonic()
        try:
            async for event in follower.window():
                yield event
            if failures:
                yield CHECK_ALL
            failures = 0
        except GoneError:
            follower.version = ""  # the list was too old: list again
            yield CHECK_ALL
        except (ExecutorError, KeyError, TypeError, ValueError) as error:
            if not failures:
                log.warning("cannot follow the Pods of the namespace %s: %s", source.name, error)
            await asyncio.sleep(_RETRY_DELAYS[min(failures, len(_RETRY_DELAYS) - 1)])
            failures += 1
        await asyncio.sleep(max(began + SHORTEST_WINDOW - time.monotonic(), 0))


class _Follower:
    """The Pods of one namespace, with the version up to which every change was seen."""

    def __init__(self, source: Namespace):
        self._source, self.version = source, ""
        self._ended: set[str] = set()
        """Uids of Pods whose end was reported."""
        self._lists_again = False
        """Whether a deleted Pod waits to be settled. What is missing for that may cause no change of the Pod: an answer
        of the cluster, or the taint by which a person gives up its node."""

    async def window(self) -> AsyncIterator[ExitEvent]:
        """Yield the ends of one watch; raises ExecutorError."""
        async with open_cluster(self._source.cluster, self._source.name) as cluster:
            if not self.version or self._lists_again:
                found, version = await cluster.list_all(PODS)
                self._lists_again = False
                self._ended &= {entry["metadata"]["uid"] for entry in found}
                for entry in found:
                    if (event := await self._seen(cluster, Pod(entry))) is not None:
                        yield event
                self.version = version
            async for kind, entry in cluster.watch(PODS, self.version, WINDOW_SECONDS):
                self.version = str(entry["metadata"]["resourceVersion"])
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    self._ended.discard(entry["metadata"]["uid"])
                if kind == "DELETED" and Pod(entry).execution_id:
                    yield _event(Pod(entry))
                elif kind != "DELETED" and (event := await self._seen(cluster, Pod(entry))) is not None:
                    yield event

    async def _seen(self, cluster: Cluster, pod: Pod) -> ExitEvent | None:
        """Report the end of a Pod once; settle it if somebody has deleted it."""
        if not pod.execution_id or not names.is_ours(pod.entry):
            return None
        if pod.is_deleted and pod.has_finalizer:
            self._lists_again |= not await _settle(cluster, pod)
        if not pod.end() or pod.uid in self._ended:
            return None
        self._ended.add(pod.uid)
        return _event(pod)


async def _settle(cluster: Cluster, pod: Pod) -> bool:
    """Record the end of a deleted Pod and let it go; False if that is not possible yet."""
    owner = names.owner_of_pod(pod.name)
    try:
        volume = await volumes.find_volume(cluster, owner)
        if end := await volumes.proven_end(cluster, pod, volume):
            await volumes.settle(cluster, pod, owner, end)
        return bool(end)
    except ExecutorError as error:
        log.info("the end of the Pod %s could not be recorded yet: %s", pod.name, error.message)
        return False


def _event(pod: Pod) -> ExitEvent:
    return ExitEvent(pod.labels.get(names.SESSION_LABEL, ""), pod.uid)
