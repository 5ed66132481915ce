"""The record of who may write to a session's volume, kept on its claim in the cluster.

A Pod may write once its uid stands there as the holder: until then it only waits for its seed, which nobody sends
before. The end of a Pod is recorded there before its object may go. So whoever finds no Pod knows whether the last one
has ended, whatever was missed, restarted or restored meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from executors_app.runtimes.kubernetes import names, pod_state
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, SECRETS, Cluster
from executors_app.runtimes.kubernetes.config import is_user
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.words import REFUSALS, ConflictError, NotFoundError

_TRIES: Final = 5
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_UNKNOWN: Final = "unknown"
"""The holder in a record that somebody has spoilt, once a person has confirmed the end of whatever it was."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume claim with its record."""

    entry: Mapping[str, Any]

    @property
    def holder(self) -> str:
        """The uid of the last Pod that was allowed to write; empty if none ever was."""
        return names.annotations_of(self.entry).get(names.HOLDER, "")

    @property
    def is_going(self) -> bool:
        """Whether somebody has deleted the claim."""
        return bool(self.entry["metadata"].get("deletionTimestamp"))

    @property
    def user(self) -> str:
        """The owner of its files, as ``UID:GID``; empty if that is not recorded, or cannot be one."""
        recorded = names.annotations_of(self.entry).get(names.USER, "")
        return recorded if is_user(recorded) else ""

    def end_of(self, uid: str) -> str:
        """Return how a Pod has ended, if that was recorded; else empty."""
        recorded, _, reason = names.annotations_of(self.entry).get(names.ENDED, "").partition(" ")
        if recorded != uid or not uid:
            return ""
        return reason if reason in pod_state.END_REASONS else pod_state.ENDED

    @property
    def last_end(self) -> str:
        """How the last writer has ended; empty if that is not known."""
        if not self.holder:
            return pod_state.NEVER_RAN
        return self.end_of(self.holder)


async def create_pod(cluster: Cluster, secret: Mapping[str, Any], body: Mapping[str, Any]) -> Pod:
    """Make a Pod with the Secret that it reads. Raises ConflictError if another Pod has its name."""
    await cluster.create(SECRETS, secret)
    try:
        return Pod(await cluster.create(PODS, body))
    except (ConflictError, *REFUSALS):
        # No Pod will use it. After any other error the Pod may have been made.
        await cluster.delete(SECRETS, secret["metadata"]["name"])
        raise


async def find_volume(cluster: Cluster, owner_id: str) -> Volume | None:
    """Return the volume of a session; None if it has none."""
    found = await cluster.find(CLAIMS, names.claim_name(owner_id))
    if found is None:
        return None
    return Volume(found)


class KnowsNodes(Protocol):
    """What knows the nodes of a cluster."""

    async def is_out_of_service(self, node: str) -> bool:
        """Whether a person has declared a node to be shut down for good."""
        ...


async def proven_end(nodes: KnowsNodes, pod: Pod, volume: Volume | None) -> str:
    """Return how a Pod has ended for certain; empty if it may still run."""
    if end := pod.end():
        return end
    if volume is not None and volume.holder != pod.uid and pod.is_deleted and not pod.has_run:
        # It never got its seed, and nobody will send it one. If it runs nevertheless, somebody has changed the record,
        # or made the claim anew.
        return pod_state.NEVER_RAN
    if not pod.is_final:
        return ""
    if volume is not None and (recorded := volume.end_of(pod.uid)):
        return recorded
    if pod.node and await nodes.is_out_of_service(pod.node):
        return pod_state.OUT_OF_SERVICE
    return ""


def confirmation(namespace: str, owner_id: str, uid: str) -> str:
    """Return the command with which a person confirms the end of a Pod that no node will ever report.

    ``uid`` may come from the record, where anybody may have written anything: what is no uid is never part of the
    command, which replaces it.
    """
    claim, holder = names.claim_name(owner_id), ""
    if not _UID.fullmatch(uid):
        uid, holder = _UNKNOWN, f"{names.HOLDER}={_UNKNOWN} "
    record = f"{holder}'{names.ENDED}={uid} {pod_state.CONFIRMED}'"
    return f"kubectl annotate pvc {claim} --namespace {namespace} --overwrite {record}"


async def hold(cluster: Cluster, volume: Volume, pod: Pod, user: str) -> None:
    """Record that a Pod, whose agents are this user, may write from now on; the last writer's end must be known.

    Raises ConflictError.
    """
    if volume.holder != pod.uid:
        labels = {names.EXECUTION_LABEL: pod.execution_id}
        await cluster.mark(CLAIMS, volume.entry, {names.HOLDER: pod.uid, names.USER: user}, labels)


async def settle(cluster: Cluster, pod: Pod, owner_id: str, end: str) -> None:
    """Record the end of a Pod on its volume, and only then let its object and its Secret go."""
    for attempt in range(_TRIES):
        volume = await find_volume(cluster, owner_id)
        if volume is None or volume.holder != pod.uid or volume.end_of(pod.uid):
            break
        try:
            await cluster.mark(CLAIMS, volume.entry, {names.ENDED: f"{pod.uid} {end}"})
            break
        except (ConflictError, NotFoundError):
            if attempt == _TRIES - 1:
                raise
    await let_go(cluster, pod)


async def let_go(cluster: Cluster, pod: Pod) -> None:
    """Remove the object of a Pod whose end is recorded, or which could never write, with its Secret."""
    for attempt in range(_TRIES):
        found = await cluster.find(PODS, pod.name)
        if found is None or found["metadata"]["uid"] != pod.uid:
            break
        try:
            if Pod(found).has_finalizer:
                await cluster.release(PODS, found, names.FINALIZER)
            await cluster.delete(PODS, pod.name, pod.uid)
            break
        except (ConflictError, NotFoundError):
            if attempt == _TRIES - 1:
                raise
    if pod.secret:
        await cluster.delete(SECRETS, pod.secret)
