"""End Pods gracefully and see their end; list and remove what no row needs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Any, Final

from executors_app.runtimes.kubernetes import names, volumes
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, SECRETS, Cluster
from executors_app.runtimes.kubernetes.manifests import GRACE
from executors_app.runtimes.kubernetes.observation import is_declared_lost, is_elsewhere
from executors_app.runtimes.kubernetes.pod_state import Pod, is_owned
from executors_app.wire.executions import ExecutionFacts, Orphan

log = logging.getLogger(__name__)

END_TIMEOUT: Final = GRACE + 40.0
_POLL: Final = 0.25
_SEPARATOR: Final = "/"


async def end_pod(cluster: Cluster, execution: ExecutionFacts) -> bool:
    """Delete an execution's Pod and wait for its end; False if it is not that execution's, or did not end in time.

    The volume is kept, with the record of the end. Tokens that killed launches have left go.
    """
    has_ended = await _end_own_pod(cluster, execution)
    if has_ended:
        left, _ = await cluster.list_all(SECRETS, {names.EXECUTION_LABEL: execution.id})
        for secret in left:
            await cluster.delete(SECRETS, secret["metadata"]["name"], secret["metadata"]["uid"])
    return has_ended


async def _end_own_pod(cluster: Cluster, execution: ExecutionFacts) -> bool:
    deadline = time.monotonic() + END_TIMEOUT
    name = names.pod_name(execution.worktree_owner)
    while True:
        found = await cluster.find(PODS, name)
        if found is None:
            return await _end_absent(cluster, execution)
        pod = Pod(found)
        if pod.is_reader:
            return True  # it only reads, and nothing else has the name
        if not is_owned(pod, execution.id, execution.session_id):
            return False
        if await _end(cluster, pod, execution.worktree_owner):
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL)


async def _end_absent(cluster: Cluster, execution: ExecutionFacts) -> bool:
    """Return whether an execution that has no Pod has ended for certain."""
    volume = await volumes.find_volume(cluster, execution.worktree_owner)
    if volume is not None:
        has_ended = bool(volume.last_end)
    else:
        has_ended = is_declared_lost(execution) or not is_elsewhere(execution, await cluster.namespace_uid())
    if not has_ended:
        log.warning("session %s: nobody has seen the end of its Pod, or another cluster has it", execution.session_id)
    return has_ended


async def _end(cluster: Cluster, pod: Pod, owner_id: str) -> bool:
    """Take the next step towards the end of a Pod; True once it is recorded and the object has gone."""
    volume = await volumes.find_volume(cluster, owner_id)
    if end := await volumes.proven_end(cluster, pod, volume):
        await volumes.settle(cluster, pod, owner_id, end)
        return True
    if not pod.is_deleted:
        await cluster.delete(PODS, pod.name, pod.uid)
    return False


async def list_orphans(cluster: Cluster, known: Collection[str]) -> list[Orphan]:
    """List our Pods, Secrets and volume claims that belong to no execution or session in ``known``.

    Whatever the labels say by now: an object also belongs to the session or execution in its name.
    """
    known = set(known)
    listed: list[Orphan] = []
    for kind in (PODS, SECRETS, CLAIMS):
        for entry in (await cluster.list_all(kind))[0]:
            execution_id = _execution_of(entry)
            ids = names.ids_in(entry["metadata"]["name"])
            if not known & {execution_id, *ids}:
                status = str((entry.get("status") or {}).get("phase") or "present")
                orphan = f"{kind}{_SEPARATOR}{entry['metadata']['name']}"
                listed.append(Orphan(orphan, execution_id, status, owner_ids=tuple(ids)))
    return listed


async def remove_orphan(cluster: Cluster, orphan: Orphan) -> bool:
    """Remove an orphan if it is still what was listed; True if nothing of it is left.

    A Pod is ended gracefully, and its object goes only once its end was seen.
    """
    kind, _, name = orphan.id.partition(_SEPARATOR)
    if kind not in (PODS, SECRETS, CLAIMS):
        return False
    found = await cluster.find(kind, name) if kind != SECRETS else await _secret(cluster, name)
    if found is None:
        return True
    if not names.is_ours(found) or not orphan.execution_id or _execution_of(found) != orphan.execution_id:
        return False
    if kind == PODS:
        return await remove_pod(cluster, Pod(found))
    await cluster.delete(kind, name, found["metadata"]["uid"])
    return True


async def remove_pod(cluster: Cluster, pod: Pod) -> bool:
    """End a Pod gracefully, and let its object go once its end was seen; return whether it has gone in time."""
    owner = names.owner_of_pod(pod.name)
    if pod.is_reader:
        await volumes.let_go(cluster, pod)
        return True
    deadline = time.monotonic() + END_TIMEOUT
    while not await _end(cluster, pod, owner):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL)
        found = await cluster.find(PODS, pod.name)
        if found is None or found["metadata"]["uid"] != pod.uid:
            return True
        pod = Pod(found)
    return True


async def _secret(cluster: Cluster, name: str) -> dict[str, Any] | None:
    """Return a Secret of this deployment; the Role allows to list them, not to read each."""
    found, _ = await cluster.list_all(SECRETS)
    return next((entry for entry in found if entry["metadata"]["name"] == name), None)


def _execution_of(entry: dict[str, Any]) -> str:
    """Return the execution that an object was made for; empty for none."""
    labels = names.labels_of(entry)
    return labels.get(names.EXECUTION_LABEL) or labels.get(names.HELPER_LABEL, "")
