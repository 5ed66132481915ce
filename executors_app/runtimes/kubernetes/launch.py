"""Start the Pod of a session: found, continued or made.

Every step can be repeated after a crash. The seed goes to the Pod only after the volume's record names it as the
writer, so a Pod that nobody finished starting never runs agentctl.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from executors_app.agentctl_client.client import HttpClient
from executors_app.machine.git import workspace_root
from executors_app.repositories import workspace_store
from executors_app.runtimes import ReportWait
from executors_app.runtimes.kubernetes import manifests, names, volumes, waits, words
from executors_app.runtimes.kubernetes.cluster import CLAIMS, PODS, Cluster
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import EVICTED, OUT_OF_MEMORY, Pod, is_owned
from executors_app.runtimes.kubernetes.reach import pod_token, pod_url, status_client
from executors_app.runtimes.kubernetes.volumes import Volume
from executors_app.wire import launch_tokens
from executors_app.wire.errors import AgentctlUnreachable, ExecutorError, LaunchFailed, WorkspaceGone
from executors_app.wire.executions import LaunchSpec, LaunchWait

START_TIMEOUT: Final = 300.0
"""Seconds that a Pod may take to run agentctl: its image may have to be pulled, its volume to be made."""
WORKSPACE_TIMEOUT: Final = 600.0
"""Seconds that agentctl may take to make the workspace before it listens."""
ENDING_TIMEOUT: Final = 60.0
"""Seconds to wait for the end of an earlier Pod."""
ASK_TIMEOUT: Final = 5.0
_UPLOAD_TIMEOUT: Final = 600.0
_UPLOAD_PATIENCE: Final = 60.0
"""Seconds in which a broken connection to a Pod that waits for its seed is tried again."""
_POLL: Final = 0.3
_CHUNK: Final = 1 << 20


def report_nothing(_: LaunchWait) -> None:
    """Tell nobody what a launch waits for."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A Pod whose agentctl answers."""

    pod: Pod
    url: str
    boot_id: str
    found: bool
    """Whether agentctl was already running."""
    rebuilt: str = ""
    """What a lost workspace was rebuilt from, as a sentence for users."""


async def ensure_pod(
    cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec, lost: str = "", report: ReportWait = report_nothing
) -> RunningPod:
    """Return the session's Pod with a running agentctl; tell ``report`` what it waits for.

    ``lost``: why the workspace must be rebuilt from what has arrived; empty if it need not be. Raises WorkspaceGone,
    RepositoryUnusable, LaunchFailed, RuntimeUnavailable.
    """
    pod = await _free_name(cluster, spec)
    volume, is_new = await _ensure_volume(cluster, config, spec)
    if pod is None and not volume.last_end:
        raise _end_unknown(cluster, spec, volume)
    if is_new and spec.worktree_path and not lost:
        lost = f"The volume claim {names.claim_name(spec.worktree_owner)} was removed."
    # One that may write, but still waits for its seed, is left from a launch that was killed: it gets the seed now.
    if pod is not None and volume.holder == pod.uid and not pod.waits_for_seed:
        return await _wait_until_ready(cluster, config, spec, pod, found=True)
    if pod is not None and pod.made_from != manifests.made_from(config, spec):
        await _remove_waiting(cluster, pod)  # the settings have changed
        pod = await _free_name(cluster, spec)
    rebuilt = ""
    with tempfile.TemporaryDirectory(prefix="kandev-seed-") as directory:
        seed = Path(directory) / "seed"
        rebuilt = await workspace_store.in_git_thread(
            spec.repository_path, workspace_store.prepare_seed, spec, seed, borrows=False, lost=lost
        )
        if pod is None:
            pod = await _create(cluster, config, spec)
        pod = await _wait_for_seed_time(cluster, spec, pod, report)
        report(waits.SEED)
        pod = await _hold(cluster, config, spec, pod)
        await _upload(cluster, config, spec, pod, seed)
    report(waits.WORKSPACE)
    ready = await _wait_until_ready(cluster, config, spec, pod, found=False)
    return RunningPod(ready.pod, ready.url, ready.boot_id, found=False, rebuilt=rebuilt)


async def _free_name(cluster: Cluster, spec: LaunchSpec) -> Pod | None:
    """Return the Pod to use or to continue; None if there is none and its name is free.

    Whatever else has the name is waited for: nothing is started beside it.
    """
    deadline = time.monotonic() + ENDING_TIMEOUT
    name = names.pod_name(spec.worktree_owner)
    while True:
        found = await cluster.find(PODS, name)
        if found is None:
            return None
        pod = Pod(found)
        if not names.is_ours(found):
            raise LaunchFailed(f"The Pod {name} does not belong to this Kandev, so it was left alone.")
        if pod.is_reader:
            if pod.end() or time.monotonic() > deadline - ENDING_TIMEOUT / 2:
                await cluster.delete(PODS, name, pod.uid)
        else:
            volume = await volumes.find_volume(cluster, spec.worktree_owner)
            if end := await volumes.proven_end(cluster, pod, volume):
                await volumes.settle(cluster, pod, spec.worktree_owner, end)
                if await cluster.find(PODS, name) is None:
                    return None
                # Its node has still to let the object go: one that is not seen does so late, or never.
            elif await _can_continue(cluster, spec, pod):
                return pod
        if time.monotonic() > deadline:
            raise _still_ending(cluster, pod)
        await asyncio.sleep(_POLL)


async def _can_continue(cluster: Cluster, spec: LaunchSpec, pod: Pod) -> bool:
    """Whether a Pod that may run is this execution's, and not about to end; raises LaunchFailed for another one's."""
    if pod.is_deleted:
        return False
    if not is_owned(pod, spec.execution_id, spec.session_id):
        raise LaunchFailed(f"Another execution of this session uses the Pod {pod.name}. Stop the session first.")
    if pod.is_final:
        await cluster.delete(PODS, pod.name, pod.uid)
    return not pod.is_final


async def _ensure_volume(cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec) -> tuple[Volume, bool]:
    """Return the session's volume claim, and whether it was made now."""
    found = await volumes.find_volume(cluster, spec.worktree_owner)
    if found is None:
        try:
            return Volume(await cluster.create(CLAIMS, manifests.claim(config, spec))), True
        except words.ConflictError:
            found = await volumes.find_volume(cluster, spec.worktree_owner)
    if found is None or found.is_going:
        raise LaunchFailed(
            f"The volume claim {names.claim_name(spec.worktree_owner)} is being deleted. Try again when it is gone."
        )
    if not names.is_ours(found.entry):
        raise LaunchFailed(
            f"The volume claim of {names.claim_name(spec.worktree_owner)} does not belong to this Kandev."
        )
    return found, False


async def _create(cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec) -> Pod:
    """Make the Secret and the Pod of one launch. Of two at once, one gets the name of the Pod; it keeps its Secret."""
    token = launch_tokens.mint_launch_token(spec.auth_token)
    labels = names.execution_labels(spec.execution_id, spec.session_id, spec.task_id)
    try:
        return await volumes.create_pod(
            cluster, manifests.token_secret(labels, token), manifests.session_pod(config, spec, token)
        )
    except words.ConflictError as error:
        raise words.PodStillEnding(
            "Another Pod of this session has just appeared. It is tried again.", for_staff=error.message_for_staff
        ) from error


async def _wait_for_seed_time(cluster: Cluster, spec: LaunchSpec, pod: Pod, report: ReportWait = report_nothing) -> Pod:
    """Return the Pod once it waits for its seed, or runs because another launch has sent that meanwhile.

    One that cannot start is removed: it has never run.
    """
    deadline = time.monotonic() + START_TIMEOUT
    while not (pod.waits_for_seed or pod.is_up):
        if pod.end() or pod.is_deleted:
            error = await _start_failure(cluster, pod)
            if pod.end():
                await volumes.settle(cluster, pod, spec.worktree_owner, pod.end())
            raise error
        report(waits.wait_of(pod))
        obstacle = pod.obstacle(cluster.namespace) or pod.rejection()
        if obstacle is None and time.monotonic() > deadline:
            obstacle = words.PodNotReady(
                f"The Pod of this session was not ready within {START_TIMEOUT:g} s. kubectl describe pod {pod.name} "
                f"in the namespace {cluster.namespace} shows why.",
                for_staff=words.shorten(pod.phase),
            )
        if obstacle is not None:
            # One that waits for a node or a volume goes on waiting, so that an autoscaler is not interrupted: the
            # next try finds it.
            if isinstance(obstacle, (words.PodUnschedulable, words.PodVolumeNotBound)):
                raise obstacle
            if await _is_removed(cluster, pod):
                raise obstacle
        await asyncio.sleep(_POLL)
        pod = await _again(cluster, pod)
    return pod


async def _is_removed(cluster: Cluster, pod: Pod) -> bool:
    """Remove a Pod as it was judged; False if it has changed since, so that it has to be judged again."""
    try:
        await cluster.delete_unchanged(PODS, pod.entry)
    except words.ConflictError:
        return False
    return True


async def _remove_waiting(cluster: Cluster, pod: Pod) -> None:
    """Remove a Pod whose agentctl has never run; raises PodStillEnding if it has started meanwhile."""
    deadline = time.monotonic() + ENDING_TIMEOUT
    while not await _is_removed(cluster, pod):
        pod = await _again(cluster, pod)
        if pod.has_started or time.monotonic() > deadline:
            raise words.PodStillEnding("Another start of this session is still running. Try again.")
        await asyncio.sleep(_POLL)


async def _hold(cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec, pod: Pod) -> Pod:
    """Record that the Pod may write, and return it as it is after that."""
    volume = await volumes.find_volume(cluster, spec.worktree_owner)
    if volume is None or volume.is_going:
        raise LaunchFailed("The volume claim of this session was removed while it started.")
    if volume.holder != pod.uid and not volume.last_end:
        raise _end_unknown(cluster, spec, volume)
    try:
        await volumes.hold(cluster, volume, pod, config.user)
    except words.ConflictError as error:
        raise words.PodStillEnding("Another start of this session is still running. Try again.") from error
    # Whoever found it deleted before the record named it has taken it for one that never gets a seed.
    pod = await _again(cluster, pod)
    if pod.is_deleted:
        raise _still_ending(cluster, pod)
    return pod


async def _upload(cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec, pod: Pod, seed: Path) -> None:
    """Send the seed, which may have any size, until the Pod has it; a broken connection starts again."""
    digest = await asyncio.to_thread(_digest, seed)
    client = HttpClient(pod_url(config, pod), {"Authorization": f"Bearer {pod_token(pod, spec.auth_token)}"})
    deadline, problem = time.monotonic() + _UPLOAD_PATIENCE, ""
    # The answer may be lost although the seed has arrived: then the init container has ended.
    while pod.waits_for_seed:
        if time.monotonic() > deadline:
            raise words.PodNotReady(f"The seed could not be sent to the Pod: {problem}")
        try:
            if await _takes_seed(client):
                with seed.open("rb") as content:
                    await client.upload(f"/seed?sha256={digest}", content, {}, timeout=_UPLOAD_TIMEOUT)
                return
            problem = "its agentctl has already started"
        except AgentctlUnreachable as error:
            problem = error.message
        except ExecutorError as error:
            raise LaunchFailed(f"The Pod did not take the seed: {error.message}") from error
        await asyncio.sleep(_POLL)
        pod = await _again(cluster, pod)


async def _takes_seed(client: HttpClient) -> bool:
    """Whether what answers waits for the seed. Later, agentctl answers there, before the cluster says so."""
    return (await client.get("/health", timeout=ASK_TIMEOUT)).get("status") == "waiting"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := _part(file):
            digest.update(part)
    return digest.hexdigest()


def _part(file: IO[bytes]) -> bytes:
    return file.read(_CHUNK)


async def _wait_until_ready(
    cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec, pod: Pod, *, found: bool
) -> RunningPod:
    """Return the Pod once its agentctl answers to our token."""
    deadline, problem = time.monotonic() + WORKSPACE_TIMEOUT, "it has not started yet"
    token = pod_token(pod, spec.auth_token)
    while time.monotonic() < deadline:
        pod = await _again(cluster, pod)
        if pod.end():
            error = await _start_failure(cluster, pod)
            await volumes.settle(cluster, pod, spec.worktree_owner, pod.end())
            raise error
        if pod.is_final:
            raise _still_ending(cluster, pod)
        if obstacle := pod.obstacle(cluster.namespace):
            raise obstacle
        if pod.is_up and (url := pod_url(config, pod)):
            try:
                status = await status_client(url, token, spec.execution_id).status(ASK_TIMEOUT)
                return RunningPod(pod, url, str(status.get("boot_id", "")), found)
            except AgentctlUnreachable as error:
                problem = error.message
            except ExecutorError as error:
                raise LaunchFailed(f"This session's agentctl rejected the control plane: {error.message}") from error
        await asyncio.sleep(_POLL)
    raise words.PodNotReady(f"agentctl was not ready within {WORKSPACE_TIMEOUT:g} s: {problem}")


async def _again(cluster: Cluster, pod: Pod) -> Pod:
    found = await cluster.find(PODS, pod.name)
    if found is None or found["metadata"]["uid"] != pod.uid:
        raise LaunchFailed(f"The Pod {pod.name} was removed while it was starting.")
    return Pod(found)


async def _start_failure(cluster: Cluster, pod: Pod) -> ExecutorError:
    """Return why a Pod ended before its agentctl served, from its last words, which an agent cannot have written."""
    end = pod.end()
    if end == OUT_OF_MEMORY:
        return words.PodOutOfMemory("The Pod ran out of memory while it started. Raise memory_mb of this executor.")
    if end == EVICTED:
        return words.PodEvicted("The cluster evicted the Pod while it started, because its node ran short. Try again.")
    if not end:
        return _still_ending(cluster, pod)
    for container in (names.AGENTCTL, names.PREPARE):
        output = await cluster.log_tail(pod.name, container)
        answer = workspace_root.parse_answer(output) or {}
        if "error" in answer:
            return workspace_root.parse_error(answer)
        if output:
            break
    tail = "".join(char if char.isprintable() or char == "\n" else " " for char in output)[-1000:]
    return LaunchFailed(f"The Pod exited on startup ({pod.exit_words()}): {tail}")


def _still_ending(cluster: Cluster, pod: Pod) -> words.PodStillEnding:
    """Return the refusal with what a person can do; a Pod that is seen to have ended needs nobody's word."""
    where = f" on the node {words.shorten(pod.node)}" if pod.node else ""
    if pod.end():
        return words.PodStillEnding(
            f"The Pod {pod.name}{where} has ended, but the cluster has not removed it yet. Some nodes take a minute "
            f"for that. Try again; if it stays, see who holds it: kubectl -n {cluster.namespace} get pod {pod.name} "
            "-o jsonpath={.metadata.finalizers}"
        )
    said = (
        f"The Pod {pod.name} is still ending{where}. If the node is lost for good, shut it down and give it the taint "
        "node.kubernetes.io/out-of-service."
    )
    if not pod.is_reader:
        command = volumes.confirmation(cluster.namespace, names.owner_of_pod(pod.name), pod.uid)
        said += f" When you are sure that the Pod has ended, although its node does not say so, run: {command}"
    return words.PodStillEnding(said)


def _end_unknown(cluster: Cluster, spec: LaunchSpec, volume: Volume) -> words.PodEndUnknown:
    command = volumes.confirmation(cluster.namespace, spec.worktree_owner, volume.holder)
    return words.PodEndUnknown(
        f"The Pod that used this session's volume is gone, and nobody saw its end. When you are sure that it has "
        f"ended, run: {command}"
    )


async def launch_pod(
    cluster: Cluster, config: KubernetesConfig, spec: LaunchSpec, report: ReportWait = report_nothing
) -> RunningPod:
    """Return the session's Pod; a workspace that turns out to be lost is rebuilt from what has arrived.

    ``report`` is told what the Pod waits for.
    """
    try:
        return await ensure_pod(cluster, config, spec, report=report)
    except WorkspaceGone as error:
        # The first seed assumed that the workspace exists and carries no objects.
        return await ensure_pod(cluster, config, spec, error.message, report)
