"""How a Kubernetes cluster is reached: its address and credentials, from a kubeconfig or from inside the cluster.

It stands beside the client of agentctl, not in the runtime's folder, because the tunnel into Pods needs it in every
process that talks to an agentctl.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from executors_app.wire.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

_KEPT_FOR: Final = 30.0
"""Seconds for which a configuration that was read is used again: a login program in a kubeconfig may be slow."""
_ERROR_TEXT_LIMIT: Final = 300


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a cluster; equal addresses are the same cluster and user."""

    kubeconfig: str = ""
    """Absolute path of a file on this machine; empty: the service account of the Pod that we run in."""
    context: str = ""
    """The context of the file; empty: its current one."""

    def problem(self) -> str:
        """Return why the file cannot be used, as a sentence; empty if it can."""
        if not self.kubeconfig:
            if os.environ.get("KUBERNETES_SERVICE_HOST"):
                return ""
            return "Kandev does not run inside a cluster. Set kubeconfig in this executor's settings."
        path = Path(self.kubeconfig)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            return f"kubeconfig: {path} cannot be read: {error.strerror}."
        if not path.is_file() or not os.access(path, os.R_OK):
            return f"kubeconfig: {path} is not a readable file."
        if mode & 0o077:
            return f"kubeconfig: {path} can be read by other users. Run chmod 600 on it."
        return ""


_read: dict[ClusterAddress, tuple[float, int, Configuration]] = {}
"""Configurations that were read: when, the file's modification time, and the configuration."""


@asynccontextmanager
async def open_cluster_client(address: ClusterAddress) -> AsyncIterator[ApiClient]:
    """Yield a client of the cluster; raises RuntimeUnavailable if its address or credentials cannot be read."""
    configuration = await _configuration(address)
    from kubernetes.aio.client import ApiClient  # noqa: PLC0415 - costs a second and 45 MB

    async with ApiClient(configuration) as client:
        try:
            yield client
        finally:
            await _close_connections(client)


async def _close_connections(client: Any) -> None:
    """Close the connections at once: a polite end of TLS would outlive the client."""
    pool = client.rest_client.pool_manager
    if pool is not None and pool.connector is not None:
        await pool.connector.close(abort_ssl=True)


async def _configuration(address: ClusterAddress) -> Configuration:
    if problem := await asyncio.to_thread(address.problem):
        raise RuntimeUnavailable(problem)
    changed = _changed(address)
    known = _read.get(address)
    if known is not None and known[1] == changed and time.monotonic() - known[0] < _KEPT_FOR:
        return known[2]
    try:
        configuration = await _load(address)
    except Exception as error:  # the loader raises whatever a broken file or a failed login program brings about
        said = " ".join(str(error).split())[:_ERROR_TEXT_LIMIT]
        raise RuntimeUnavailable(f"The credentials of the cluster cannot be read: {said}") from error
    _read[address] = (time.monotonic(), changed, configuration)
    return configuration


def _changed(address: ClusterAddress) -> int:
    try:
        return Path(address.kubeconfig).stat().st_mtime_ns if address.kubeconfig else 0
    except OSError:
        return 0


async def _load(address: ClusterAddress) -> Configuration:
    await asyncio.to_thread(_import_client)
    from kubernetes.aio import config  # noqa: PLC0415 - see above
    from kubernetes.aio.client import Configuration  # noqa: PLC0415 - see above

    configuration = Configuration()
    loader: Any = config  # has no types
    if address.kubeconfig:
        await loader.load_kube_config(address.kubeconfig, address.context or None, configuration, persist_config=False)
    else:
        loader.load_incluster_config(configuration)
    configuration.retries = None
    return configuration


def _import_client() -> None:
    """Import the client in a thread: it takes a second, in which the event loop must go on."""
    import kubernetes.aio.client  # noqa: PLC0415 - see above
    import kubernetes.aio.config  # noqa: F401, PLC0415 - see above
