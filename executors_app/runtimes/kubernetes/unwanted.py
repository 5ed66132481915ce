"""Remove what waits in a cluster for a start that nobody wants any more: Pods that never ran, and their volumes.

A session may be given up, closed or deleted while its Pod waits for a node. Whoever removes such a Pod removes it as it
was judged: one that has changed since, such as one that begins to run, is left alone and judged again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from executors_app.runtimes import FindUnwanted
from executors_app.runtimes.kubernetes import lifecycle, names, volumes
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, SECRETS, Cluster, open_cluster
from executors_app.runtimes.kubernetes.exit_events import Namespace
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.words import ConflictError
from executors_app.wire.errors import ExecutorError

log = logging.getLogger(__name__)

_MOST_AT_ONCE: Final = 20
"""Pods of one namespace that are removed in one pass; the next pass takes the next ones."""


async def remove_unwanted(source: Namespace, find_unwanted: FindUnwanted) -> None:
    """Remove the Pods of a namespace that have never run, and that no start will use.

    Raises nothing: what could not be removed, as the cluster does not answer, is removed in a later pass.
    """
    try:
        async with open_cluster(source.cluster, source.name) as cluster:
            found, _ = await cluster.list_all(PODS)
            waiting = {names.owner_of_pod(pod.name): pod for pod in map(Pod, found) if _never_ran(pod)}
            unwanted = await find_unwanted(waiting) if waiting else {}
            chosen = [owner for owner in waiting if owner in unwanted][:_MOST_AT_ONCE]
            await asyncio.gather(*(_remove(cluster, owner, waiting[owner], unwanted) for owner in chosen))
    except (ExecutorError, KeyError, TypeError, ValueError) as error:
        log.info("cannot remove unwanted Pods of the namespace %s: %s", source.name, error)


def _never_ran(pod: Pod) -> bool:
    """Whether a session's Pod has never run agentctl, and still may."""
    return bool(pod.execution_id) and not pod.is_reader and not pod.has_started and not pod.end()


async def _remove(cluster: Cluster, owner: str, pod: Pod, unwanted: Mapping[str, bool]) -> None:
    try:
        volume = await volumes.find_volume(cluster, owner)
        if volume is not None and volume.holder == pod.uid:
            return  # it may have got its seed by now: a stop or the next start judges it
        if not pod.is_deleted:
            await cluster.delete_unchanged(PODS, pod.entry)
        if not await lifecycle.remove_pod(cluster, pod):
            return  # its end is recorded when its node reports it
        log.info("the Pod %s, which has never run, was removed: nobody starts its session any more", pod.name)
        await _remove_secrets(cluster, pod.execution_id)
        if unwanted[owner]:
            await _remove_unused_claim(cluster, owner)
    except ConflictError:
        log.info("the Pod %s or its volume has changed, so it was left alone", pod.name)
    except ExecutorError as error:
        log.info("the Pod %s could not be removed: %s", pod.name, error.message)


async def _remove_secrets(cluster: Cluster, execution_id: str) -> None:
    left, _ = await cluster.list_all(SECRETS, {names.EXECUTION_LABEL: execution_id})
    for secret in left:
        await cluster.delete(SECRETS, secret["metadata"]["name"], secret["metadata"]["uid"])


async def _remove_unused_claim(cluster: Cluster, owner: str) -> None:
    """Remove a volume claim to which no Pod was ever allowed to write; raises ConflictError if one is by now."""
    volume = await volumes.find_volume(cluster, owner)
    if volume is None or volume.holder or not names.is_ours(volume.entry):
        return
    if await cluster.find(PODS, names.pod_name(owner)) is None:
        await cluster.delete_unchanged(CLAIMS, volume.entry)
