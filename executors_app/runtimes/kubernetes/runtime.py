"""Runtime ``kubernetes``: each session in a Pod of a cluster, with a volume of its own.

The Pod is named by the session that owns the worktree, so the name is a fence for everything that could ever write
there: a second Pod cannot exist beside it. Nothing is ever deleted by force, and a Pod counts as ended only when its
node has said so. What a Pod may do and how it ended is recorded on its volume claim (``volumes``), so that no memory,
event or database row is needed to know it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.storage import ExecutionStorage
from executors_app.repositories import workspace_store
from executors_app.runtimes import FindUnwanted, ReportWait
from executors_app.runtimes.fetched_state import read_fetched_state
from executors_app.runtimes.kubernetes import exit_events, lifecycle, manifests, reading, words
from executors_app.runtimes.kubernetes.cluster import RIGHTS, TUNNEL_RIGHTS, open_cluster
from executors_app.runtimes.kubernetes.config import KubernetesConfig, read_kubernetes_config
from executors_app.runtimes.kubernetes.exit_events import Namespace
from executors_app.runtimes.kubernetes.launch import launch_pod, report_nothing
from executors_app.runtimes.kubernetes.observation import is_declared_lost, judge, judge_lost, list_namespace
from executors_app.runtimes.kubernetes.reach import launch_state
from executors_app.runtimes.kubernetes.unwanted import remove_unwanted
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    RepositoryUnusable,
    RuntimeUnavailable,
)
from executors_app.wire.executions import (
    NODE,
    PLACE,
    ExecutionFacts,
    ExitEvent,
    Launched,
    LaunchSpec,
    LeftState,
    Observation,
    Orphan,
)

log = logging.getLogger(__name__)
_UNAVAILABLE: Final = "runtime_unavailable"


class Kubernetes:
    """The runtime; keeps nothing in memory that correctness depends on."""

    name = "kubernetes"
    isolated = True

    def __init__(self) -> None:
        self._launching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Check the settings; see ``KubernetesConfig``."""
        read_kubernetes_config(config)

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Check that the cluster answers, has the namespace, and gives us every right that sessions need."""
        read = _config(config)
        rights = list(RIGHTS)
        if not read.is_inside:
            rights += TUNNEL_RIGHTS
        async with open_cluster(read.cluster, read.namespace) as cluster:
            missing = await cluster.missing_rights(rights)
            if len(missing) == len(rights):
                raise words.no_rights(read.namespace)
            if missing:
                raise words.missing_rights(missing, read.namespace)
            await cluster.require_namespace()

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Make the volume and the Pod of a session, or find them."""
        return await self.launch_reporting(spec, report_nothing)

    async def launch_reporting(self, spec: LaunchSpec, report: ReportWait) -> Launched:
        """Make the volume and the Pod of a session, or find them; tell ``report`` what the Pod waits for."""
        config = _config(spec.config)
        if not spec.repository_path:
            raise RepositoryUnusable("The task names no repository.")
        if spec.worktree_owner != spec.session_id:
            raise LaunchFailed("Sessions in Pods cannot share a worktree: a volume has one Pod.")
        # Prevents concurrent launches within this process; the lease prevents those of several processes, and the
        # Pod's name those of anybody.
        async with (
            self._launching.setdefault(spec.execution_id, asyncio.Lock()),
            open_cluster(config.cluster, config.namespace) as cluster,
        ):
            up = await launch_pod(cluster, config, spec, report)
            namespace_uid = await cluster.namespace_uid()
        worktree = manifests.worktree_of(spec)
        state = {"container": up.pod.uid, NODE: up.pod.node, PLACE: namespace_uid}
        state |= launch_state(up.pod, spec.auth_token)
        if up.rebuilt:
            state["rebuilt"] = up.rebuilt
        return Launched(
            url=up.url,
            pid=None,
            boot_id=up.boot_id,
            workspace_path=str(worktree.path),
            worktree_id=spec.worktree_owner,
            worktree_path=str(worktree.path),
            worktree_branch=worktree.branch,
            found=up.found,
            container_id=up.pod.uid,
            state=state,
        )

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Every control plane that reaches the cluster can manage its executions."""
        return True

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """List each namespace once, then poll the agentctl of each Pod that runs."""
        seen = {one.id: Observation.unknown(_UNAVAILABLE) for one in executions}
        places: dict[Namespace, list[tuple[ExecutionFacts, KubernetesConfig]]] = defaultdict(list)
        for one in executions:
            try:
                read = _config(one.config)
                places[Namespace(read.cluster, read.namespace)].append((one, read))
            except RuntimeUnavailable as error:
                log.warning("session %s: %s", one.session_id, error.message)
        found = await asyncio.gather(*(_observe(*place, timeout, concurrency) for place in places.items()))
        for observations in found:
            seen |= observations
        for one in executions:
            # Where no cluster answers at all, a person's word decides; where one does, what it says.
            if seen[one.id].reason == _UNAVAILABLE and is_declared_lost(one):
                seen[one.id] = await judge_lost(one)
        return seen

    async def end(self, execution: ExecutionFacts) -> bool:
        """Delete the Pod gracefully and see its end, after proof by name and labels; the volume is kept."""
        try:
            config = _config(execution.config)
            async with open_cluster(config.cluster, config.namespace) as cluster:
                return await lifecycle.end_pod(cluster, execution)
        except ExecutorError as error:
            log.warning("session %s: its Pod cannot be ended: %s", execution.session_id, error.message)
            return is_declared_lost(execution)

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """Return 0: a container's processes end with it."""
        return 0

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """Read it from agentctl's files on the volume, through a short-lived Pod; blocks."""
        return self.left_state(execution, 0, "").resume_token

    def unread_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Read it from agentctl's files on the volume, through a short-lived Pod; blocks."""
        return self.left_state(execution, after, epoch).lines

    def left_state(self, execution: ExecutionFacts, after: int, epoch: str) -> LeftState:
        """Read both through one short-lived Pod, whose start takes seconds; blocks."""
        if is_declared_lost(execution):
            return LeftState()  # its volume is gone, and each try could wait for a cluster that never answers

        def read(disk: ExecutionStorage) -> LeftState:
            return LeftState(disk.resume_token(execution.id), disk.unread_journal(execution.id, after, epoch))

        fetch = partial(reading.fetch_state, _config(execution.config), execution)
        return read_fetched_state(execution, fetch, read) or LeftState()

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Ask the running agentctl; if none answers, read the volume through a short-lived Pod.

        A Pod that another read has made answers under the same name, but only to its own token.
        """
        if not execution.repository_path or not execution.worktree_path:
            return False
        client = AgentctlClient.of(execution)
        try:
            return await workspace_store.receive_work(execution, client.work)
        except (AgentctlUnreachable, AgentctlForeign):
            config = _config(execution.config)
            return await workspace_store.receive_work(execution, partial(reading.read_work, config, execution))

    def exit_event_source(self, execution: ExecutionFacts) -> Namespace:
        """Return the execution's namespace; raises RuntimeUnavailable."""
        config = _config(execution.config)
        return Namespace(config.cluster, config.namespace)

    def exit_events(self, source: Hashable) -> AsyncIterator[ExitEvent]:
        """Follow the Pods of a namespace."""
        assert isinstance(source, Namespace)  # noqa: S101  (from exit_event_source)
        return exit_events.exit_events(source)

    async def place_answers(self, config: Mapping[str, Any], place: str) -> bool:
        """Whether the namespace that answers may be the one of this uid; raises RuntimeUnavailable."""
        read = _config(config)
        async with open_cluster(read.cluster, read.namespace) as cluster:
            return await cluster.may_be(place)

    async def settle_ended(self, configs: Collection[Mapping[str, Any]]) -> None:
        """Let go the Pods that somebody has deleted and that have ended, where no watch does it already."""
        places = {place: None for config in configs for place in _valid_namespaces(config)}
        await asyncio.gather(*map(exit_events.settle_namespace, places))

    async def remove_unwanted(self, configs: Collection[Mapping[str, Any]], find_unwanted: FindUnwanted) -> None:
        """Remove Pods that have never run, with their Secrets and volumes that were never used."""
        places = {place: None for config in configs for place in _valid_namespaces(config)}
        await asyncio.gather(*(remove_unwanted(place, find_unwanted) for place in places))

    async def orphans(self, known: Collection[str], configs: Collection[Mapping[str, Any]]) -> list[Orphan]:
        """List this deployment's Pods, volume claims and Secrets that no row needs; raises RuntimeUnavailable."""
        found: list[Orphan] = []
        for place in _namespaces(configs):
            async with open_cluster(place.cluster, place.name) as cluster:
                found += await lifecycle.list_orphans(cluster, known)
        return found

    async def remove_orphan(self, orphan: Orphan, configs: Collection[Mapping[str, Any]]) -> bool:
        """Remove an object that is still what was listed, a Pod only gracefully; raises RuntimeUnavailable."""
        removed = []
        for place in _namespaces(configs):
            async with open_cluster(place.cluster, place.name) as cluster:
                removed.append(await lifecycle.remove_orphan(cluster, orphan))
        return bool(removed) and all(removed)


RUNTIME: Final = Kubernetes()


async def _observe(
    place: Namespace, executions: Sequence[tuple[ExecutionFacts, KubernetesConfig]], timeout: float, concurrency: int
) -> dict[str, Observation]:
    seen = {one.id: Observation.unknown(_UNAVAILABLE) for one, _ in executions}
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(timeout):
                cluster = await stack.enter_async_context(open_cluster(place.cluster, place.name))
                known = await list_namespace(cluster, [one for one, _ in executions])
            bound = asyncio.Semaphore(concurrency)

            async def judged(execution: ExecutionFacts, config: KubernetesConfig) -> None:
                async with bound:
                    try:
                        seen[execution.id] = await judge(config, execution, known, timeout)
                    except (ExecutorError, OSError, KeyError, TypeError, ValueError) as error:
                        log.warning("session %s: its Pod cannot be observed: %s", execution.session_id, error)

            await asyncio.gather(*(judged(one, config) for one, config in executions))
    except (TimeoutError, ExecutorError) as error:
        log.warning("cannot observe Pods: %s", error or "the cluster does not answer in time")
    return seen


def _valid_namespaces(config: Mapping[str, Any]) -> list[Namespace]:
    try:
        return _namespaces([config])
    except RuntimeUnavailable as error:
        log.info("%s", error.message)
        return []


def _namespaces(configs: Collection[Mapping[str, Any]]) -> list[Namespace]:
    found: dict[Namespace, None] = {}
    for config in configs:
        read = _config(config)
        found[Namespace(read.cluster, read.namespace)] = None
    return list(found)


def _config(config: Mapping[str, Any]) -> KubernetesConfig:
    try:
        return read_kubernetes_config(config)
    except (ValueError, TypeError) as error:
        raise RuntimeUnavailable(f"The settings of this executor are not valid: {error}") from error
