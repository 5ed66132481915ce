"""Observe executions in Pods: what one list of a namespace shows, and what their agentctls answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.repositories import workspace_store
from executors_app.runtimes.kubernetes import names, volumes
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, Cluster
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import NEVER_RAN, Pod, is_owned
from executors_app.runtimes.kubernetes.reach import launch_state, pod_token, pod_url, status_client
from executors_app.runtimes.kubernetes.volumes import Volume
from executors_app.wire.errors import AgentctlForeign, ExecutorError
from executors_app.wire.executions import LOST_PLACE, NODE, PLACE, ExecutionFacts, Observation, Observed, WorkspaceState
from executors_app.wire.launch_tokens import LAUNCH_KEY

log = logging.getLogger(__name__)

_CONCURRENT_QUESTIONS: Final = 8


@dataclass(frozen=True, slots=True)
class Listing:
    """What a namespace has of this deployment, by name."""

    pods: Mapping[str, Pod] = field(default_factory=dict)
    claims: Mapping[str, Volume] | None = None
    """None: not listed, because every execution has a Pod that runs."""
    namespace_uid: str = ""
    lost_nodes: Collection[str] = ()
    """The nodes of Pods in question that a person has given up."""

    async def is_out_of_service(self, node: str) -> bool:
        """Whether a person has given up a node; see ``volumes.KnowsNodes``."""
        return node in self.lost_nodes


async def list_namespace(cluster: Cluster, executions: Sequence[ExecutionFacts]) -> Listing:
    """List the Pods once, and the volume claims if a Pod is missing or does not run; ask once about each lost node.

    Writes nothing. The number of requests does not grow with the number of executions.
    """
    found, _ = await cluster.list_all(PODS)
    pods = {pod.name: pod for pod in map(Pod, found)}
    wanted = [pods.get(names.pod_name(one.worktree_owner)) for one in executions]
    if all(pod is not None and pod.is_up and not pod.is_deleted for pod in wanted):
        return Listing(pods)
    claims, _ = await cluster.list_all(CLAIMS)
    uid = await cluster.namespace_uid()
    volumes_by_name = {entry["metadata"]["name"]: Volume(entry) for entry in claims}
    in_question = {pod.node for pod in wanted if pod is not None and pod.node and pod.is_final and not pod.end()}
    return Listing(pods, volumes_by_name, uid, await _lost_nodes(cluster, in_question))


async def _lost_nodes(cluster: Cluster, nodes: Collection[str]) -> Collection[str]:
    bound = asyncio.Semaphore(_CONCURRENT_QUESTIONS)

    async def is_lost(node: str) -> bool:
        async with bound:
            return await cluster.is_out_of_service(node)

    ordered = sorted(nodes)
    answers = await asyncio.gather(*map(is_lost, ordered))
    return {node for node, answer in zip(ordered, answers, strict=True) if answer}


async def judge(config: KubernetesConfig, execution: ExecutionFacts, known: Listing, timeout: float) -> Observation:
    """Return the observation of one execution; asks nothing but its agentctl."""
    pod = known.pods.get(names.pod_name(execution.worktree_owner))
    volume = (known.claims or {}).get(names.claim_name(execution.worktree_owner))
    if pod is None or pod.is_reader:
        return await _judge_absent(execution, known, volume)
    if not is_owned(pod, execution.id, execution.session_id):
        return Observation.unknown("foreign")
    if end := await volumes.proven_end(known, pod, volume):
        return await _dead(execution, end, volume)
    if known.claims is not None and not pod.has_started and (volume is None or volume.holder != pod.uid):
        # It waits for a seed that only a launch sends: nothing of the execution can run.
        return await _dead(execution, NEVER_RAN, volume)
    if not pod.is_up:
        return Observation.unknown(_not_up(pod))
    return await _poll(config, execution, pod, timeout)


async def _judge_absent(execution: ExecutionFacts, known: Listing, volume: Volume | None) -> Observation:
    if known.claims is None:
        return Observation.unknown("no_answer")  # the Pod went away between two answers
    if volume is not None:
        if end := volume.last_end:
            return await _dead(execution, end, volume)
        return Observation.unknown("pod_vanished")
    if is_elsewhere(execution, known.namespace_uid):
        if is_declared_lost(execution):
            return await judge_lost(execution)
        return Observation.unknown("other_cluster")
    # A claim cannot go while the object of a Pod uses it, and that object goes only after its end was recorded, or
    # when a person removes our finalizer.
    return await _dead(execution, "volume_gone" if PLACE in execution.state else NEVER_RAN, None)


def is_elsewhere(execution: ExecutionFacts, namespace_uid: str) -> bool:
    """Whether an execution may run in another namespace than the one that answers, which then proves nothing.

    ``namespace_uid`` is empty if the cluster does not show it.
    """
    if PLACE not in execution.state:
        return False  # its first launch never ended
    return not namespace_uid or execution.state[PLACE] != namespace_uid


def is_declared_lost(execution: ExecutionFacts) -> bool:
    """Whether a person has declared that the cluster in which an execution was started is gone for good."""
    return PLACE in execution.state and execution.state.get(LOST_PLACE) == execution.state[PLACE]


async def judge_lost(execution: ExecutionFacts) -> Observation:
    """Return the observation of an execution whose cluster was declared lost, with its volume."""
    return await _dead(execution, "cluster_lost", None, "The cluster of this session was declared lost.")


async def _poll(config: KubernetesConfig, execution: ExecutionFacts, pod: Pod, timeout: float) -> Observation:
    url, token = pod_url(config, pod), pod_token(pod, execution.auth_token)
    if not url:
        return Observation.unknown("no_answer")
    try:
        report: Mapping[str, Any] = await status_client(url, token, execution.id).status(timeout)
    except AgentctlForeign as error:
        log.info("session %s: %s", execution.session_id, error.message)
        return Observation.unknown("foreign")
    except ExecutorError as error:
        return Observation.unknown(_unanswered(pod, str(error.details.get("reason", error.code))))
    kept = {name: value for name, value in execution.state.items() if name not in (LAUNCH_KEY, LOST_PLACE)}
    state = {**kept, "container": pod.uid, NODE: pod.node, **launch_state(pod, execution.auth_token)}
    return Observation(Observed.ALIVE, report=report, url=url, seen_at=datetime.now(UTC), state=state)


def _unanswered(pod: Pod, reason: str) -> str:
    if pod.is_deleted:
        return "pod_terminating"
    return reason


def _not_up(pod: Pod) -> str:
    if pod.is_deleted:
        return "pod_terminating"
    if pod.phase in ("Failed", "Succeeded", "Unknown"):
        return "pod_end_unconfirmed"
    return "pod_pending"


async def _dead(execution: ExecutionFacts, reason: str, volume: Volume | None, lost: str = "") -> Observation:
    """Return that it is dead; ``lost`` says why there is no volume, unless that was removed."""
    if not execution.worktree_path:
        return Observation.dead(reason, WorkspaceState.REBUILDABLE)
    if volume is not None:
        return Observation.dead(reason)  # what is on the volume shows only a Pod: a launch would notice a loss
    lost = lost or f"The volume claim {names.claim_name(execution.worktree_owner)} was removed."
    branch = workspace_store.workspace_branch(execution)
    state, why = await asyncio.to_thread(workspace_store.lost_workspace_state, execution.worktree_owner, lost, branch)
    return Observation.dead(reason, state, why)
