"""Read the volume of a session whose Pod has ended, through a short-lived Pod of the same name.

It has the volume read-only, but also the name: the fence of the volume is never bypassed.
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Final

from executors_app.agentctl_client.client import HttpClient
from executors_app.machine.git.workspace_root import MAX_BUNDLE_BYTES, parse_refs
from executors_app.runtimes.fetched_state import unpack_state
from executors_app.runtimes.kubernetes import manifests, names, volumes
from executors_app.runtimes.kubernetes.cluster import PODS, Cluster, open_cluster
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import ENDED, OUT_OF_MEMORY, Pod
from executors_app.runtimes.kubernetes.reach import pod_token, pod_url
from executors_app.runtimes.kubernetes.words import ConflictError
from executors_app.wire import launch_tokens
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable, LaunchFailed, RuntimeUnavailable
from executors_app.wire.executions import ExecutionFacts
from executors_app.wire.exhaustion import raise_if_exhausted

READ_TIMEOUT: Final = 120.0
"""Seconds that the Pod may take to answer."""
_OTHERS_PATIENCE: Final = 60.0
"""Seconds that the Pod of another read may take, whose control plane may have ended; then it is removed."""
_POLL: Final = 0.2
_TRANSFER_TIMEOUT: Final = 600.0
_STATE_LIMIT: Final = 1 << 30


async def fetch_state(config: KubernetesConfig, execution: ExecutionFacts, into: Path) -> bool:
    """Copy ``journal/`` and ``token.json`` of a dead agentctl's state into a directory; False if there is no volume.

    Raises RuntimeUnavailable or AgentctlUnreachable while nobody can say what is there, and LaunchFailed for what
    cannot be read at all.
    """
    async with open_cluster(config.cluster, config.namespace) as cluster:
        with tempfile.TemporaryFile() as packed:
            async with _reader(cluster, config, execution, state=True) as client:
                if client is None:
                    return False
                try:
                    await client.download("/state", {}, packed, limit=_STATE_LIMIT, timeout=_TRANSFER_TIMEOUT)
                except AgentctlForeign as error:
                    raise LaunchFailed(f"agentctl's files on the volume cannot be read: {error.message}") from error
            packed.seek(0)
            try:
                await asyncio.to_thread(unpack_state, packed, into)
            except (tarfile.TarError, ValueError, OSError) as error:
                raise_if_exhausted(error)
                raise LaunchFailed(f"agentctl's files on the volume cannot be read: {error}") from error
    return True


async def read_work(
    config: KubernetesConfig, execution: ExecutionFacts, known: Sequence[str], into: IO[bytes]
) -> dict[str, str]:
    """Write a bundle of the session's work, and return its commits by ref; raises RuntimeUnavailable, WorkspaceGone."""
    async with (
        open_cluster(config.cluster, config.namespace) as cluster,
        _reader(cluster, config, execution, state=False) as client,
    ):
        if client is None:
            raise RuntimeUnavailable("The volume of this session cannot be read now.")
        body: dict[str, Any] = {"known": list(known)}
        return parse_refs(await client.download("/work", body, into, limit=MAX_BUNDLE_BYTES, timeout=_TRANSFER_TIMEOUT))


@asynccontextmanager
async def _reader(
    cluster: Cluster, config: KubernetesConfig, execution: ExecutionFacts, *, state: bool
) -> AsyncIterator[HttpClient | None]:
    """Yield a client of a Pod that reads the volume; None if no Pod ever wrote to it, or it is gone.

    Raises RuntimeUnavailable while something else uses it, or may do so.
    """
    if not await _is_free(cluster, execution):
        yield None
        return
    pod = await _create(cluster, config, execution, state=state)
    token = pod_token(pod, execution.auth_token)
    try:
        pod = await _ready(cluster, config, pod, token)
        yield HttpClient(pod_url(config, pod), {"Authorization": f"Bearer {token}"})
    finally:
        await asyncio.shield(volumes.let_go(cluster, pod))


async def _create(cluster: Cluster, config: KubernetesConfig, execution: ExecutionFacts, *, state: bool) -> Pod:
    volume = await volumes.find_volume(cluster, execution.worktree_owner)
    user = (volume.user if volume is not None else "") or config.user
    token = launch_tokens.mint_launch_token(execution.auth_token)
    secret = manifests.token_secret(names.helper_labels(execution.id, execution.session_id), token)
    try:
        return await volumes.create_pod(
            cluster, secret, manifests.reading_pod(config, execution, token, state=state, user=user)
        )
    except ConflictError as error:
        raise RuntimeUnavailable("Something else has begun to use the volume of this session.") from error
    except LaunchFailed as error:
        # Whatever the cluster has against this Pod says nothing about the volume.
        raise RuntimeUnavailable(error.message, **error.details) from error


async def _is_free(cluster: Cluster, execution: ExecutionFacts) -> bool:
    """Whether there is a volume to read, which nothing uses after the end of its Pod was recorded.

    Raises RuntimeUnavailable while something uses it, or may do so: what is on it is not known then.
    """
    volume = await volumes.find_volume(cluster, execution.worktree_owner)
    if volume is None or not volume.holder:
        return False
    found = await cluster.find(PODS, names.pod_name(execution.worktree_owner))
    if found is None:
        if not volume.last_end:
            raise RuntimeUnavailable("The Pod that used the volume of this session is gone, and nobody saw its end.")
        return True
    pod = Pod(found)
    if not names.is_ours(found):
        raise RuntimeUnavailable(f"The Pod {pod.name} does not belong to this Kandev, so it was left alone.")
    if not pod.is_reader:
        end = await volumes.proven_end(cluster, pod, volume)
        if not end:
            raise RuntimeUnavailable("The Pod of this session may still use its volume.")
        await volumes.settle(cluster, pod, execution.worktree_owner, end)
    if not await _is_gone(cluster, pod):
        raise RuntimeUnavailable("Another Pod still has the volume of this session.")
    return True


async def _is_gone(cluster: Cluster, pod: Pod) -> bool:
    """Wait until a name is free; False if it takes too long.

    A node lets go a Pod that was deleted some seconds after its end. An earlier reader may belong to another process:
    one that has ended, or that nobody removes, is left from a control plane that was killed.
    """
    started = time.monotonic()
    while time.monotonic() < started + READ_TIMEOUT:
        found = await cluster.find(PODS, pod.name)
        if found is None:
            return True
        if found["metadata"]["uid"] != pod.uid:
            return False
        if pod.is_reader and (Pod(found).end() or time.monotonic() > started + _OTHERS_PATIENCE):
            await volumes.let_go(cluster, pod)
        await asyncio.sleep(_POLL)
    return False


async def _ready(cluster: Cluster, config: KubernetesConfig, pod: Pod, token: str) -> Pod:
    deadline = time.monotonic() + READ_TIMEOUT
    while time.monotonic() < deadline:
        found = await cluster.find(PODS, pod.name)
        if found is None or found["metadata"]["uid"] != pod.uid:
            break
        pod = Pod(found)
        if pod.end() in (ENDED, OUT_OF_MEMORY):
            raise LaunchFailed(f"The volume of this session cannot be read: its reader ended ({pod.exit_words()}).")
        if pod.end():
            break
        if pod.is_up and (url := pod_url(config, pod)):
            try:
                await HttpClient(url, {"Authorization": f"Bearer {token}"}).get("/health", timeout=5)
                return pod
            except AgentctlUnreachable:
                pass
        await asyncio.sleep(_POLL)
    raise RuntimeUnavailable("The Pod that reads the volume of this session did not start in time.")
