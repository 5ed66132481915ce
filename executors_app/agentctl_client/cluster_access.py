"""How a Kubernetes cluster is reached: its address and credentials, from a kubeconfig or from inside the cluster.

It stands beside the client of agentctl, not in the runtime's folder, because the tunnel into Pods needs it in every
process that talks to an agentctl.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import aiohttp

from executors_app.machine.listeners import CLEANS_UP_CLOSED
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.exhaustion import is_exhausted

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

_KEPT_FOR: Final = 30.0
"""Seconds for which a configuration that was read is used again: a login program in a kubeconfig may be slow."""
_LOGIN_LIMIT: Final = 20
"""Seconds that a login program may take. Then it is ended, so that one that hangs delays no other session."""
_IMPERSONATION: Final = frozenset({"as", "as-uid", "as-groups", "as-user-extra"})
_LOAD_TIMEOUT: Final = _LOGIN_LIMIT + 20.0
"""Seconds to read the credentials, with the import of the client."""


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
            found = path.stat()
        except OSError as error:
            return f"kubeconfig: {path} cannot be read: {error.strerror}."
        if not path.is_file() or not os.access(path, os.R_OK):
            return f"kubeconfig: {path} is not a readable file."
        if found.st_uid not in (0, os.geteuid()):
            return f"kubeconfig: {path} belongs to another user, whose login program would run as Kandev's. Run chown."
        if found.st_mode & 0o077:
            return f"kubeconfig: {path} can be read by other users. Run chmod 600 on it."
        return ""


_read: dict[ClusterAddress, tuple[float, int, Configuration]] = {}
"""Configurations that were read: when, the file's modification time, and the configuration."""
_loading: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ClusterAddress, asyncio.Task[Configuration]]]
_loading = WeakKeyDictionary()
"""What is being read: once for all who wait, and to its end, however little patience each of them has."""


@asynccontextmanager
async def open_cluster_client(address: ClusterAddress) -> AsyncIterator[ApiClient]:
    """Yield a client of the cluster; raises RuntimeUnavailable if its address or credentials cannot be read."""
    async with _client(address, await _configuration(address)) as client:
        rest: Any = client.rest_client  # has no types
        # As the client's own, which leaves closed connections open until the cluster ends them politely.
        rest._create_connector = partial(  # noqa: SLF001
            aiohttp.TCPConnector, limit=rest.maxsize, ssl=rest.ssl_context, enable_cleanup_closed=CLEANS_UP_CLOSED
        )
        try:
            yield client
        finally:
            await _close_connections(client)


async def add_credentials(client: ApiClient, headers: dict[str, str]) -> None:
    """Add the header that authenticates a request; raises RuntimeUnavailable if the credentials cannot be renewed.

    Inside of a cluster, the token is read again from its file when it is a minute old.
    """
    try:
        await client.update_params_for_auth(headers, [], ["BearerToken"], "", "", None)
    except Exception as error:  # a hook of the library raises whatever a missing file brings about
        if is_exhausted(error):
            raise _no_credentials(ClusterAddress(), error) from error
        raise RuntimeUnavailable(
            "The credentials of the cluster cannot be renewed. Inside of a cluster, check that the Pods of Kandev have "
            "a service account whose token is mounted (automountServiceAccountToken).",
            for_staff=type(error).__name__,
        ) from _shown(error)


def _client(address: ClusterAddress, configuration: Configuration) -> ApiClient:
    """Return a client; only here are the certificates of a configuration read."""
    from kubernetes.aio.client import ApiClient  # noqa: PLC0415 - costs a second and 45 MB

    try:
        return ApiClient(configuration)
    except (OSError, ValueError) as error:
        raise _no_credentials(address, error) from _shown(error)


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
    tasks = _loading.setdefault(asyncio.get_running_loop(), {})
    task = tasks.get(address)
    if task is None:
        task = tasks[address] = asyncio.create_task(_load_and_keep(address, changed), name="credentials of a cluster")
        task.add_done_callback(partial(_forget_loading, tasks, address))
    return await asyncio.shield(task)


def _forget_loading(
    tasks: dict[ClusterAddress, asyncio.Task[Configuration]], address: ClusterAddress, task: asyncio.Task[Configuration]
) -> None:
    del tasks[address]
    if not task.cancelled():
        task.exception()  # whoever waited has it, and maybe nobody did


async def _load_and_keep(address: ClusterAddress, changed: int) -> Configuration:
    try:
        async with asyncio.timeout(_LOAD_TIMEOUT):
            configuration = await _load(address)
    except RuntimeUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - the loader raises whatever a broken file brings about
        raise _no_credentials(address, error) from _shown(error)
    _read[address] = (time.monotonic(), changed, configuration)
    return configuration


def _shown(error: Exception) -> Exception | None:
    """Return an error if it may be a cause, which logs show: others contain whole entries of the file, with tokens."""
    return error if is_exhausted(error) else None


def _no_credentials(address: ClusterAddress, error: Exception) -> RuntimeUnavailable:
    if is_exhausted(error):
        return RuntimeUnavailable(
            "This process has no file descriptors or memory left to read the credentials of the cluster."
        )
    # Never its text: see above.
    return RuntimeUnavailable(
        "The credentials of the cluster cannot be read. Check the kubeconfig of this executor: kubectl config view "
        "and kubectl version must accept it, as the user that Kandev runs as.",
        for_staff=f"{address.kubeconfig} {type(error).__name__}".strip(),
    )


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
        await _load_file(address, configuration)
    else:
        loader.load_incluster_config(configuration)
    configuration.retries = None
    return configuration


async def _load_file(address: ClusterAddress, configuration: Configuration) -> None:
    from kubernetes.aio.config import kube_config  # noqa: PLC0415 - see above

    library: Any = kube_config  # has no types
    merged = await asyncio.to_thread(library.KubeConfigMerger, address.kubeconfig)
    loader = library.KubeConfigLoader(
        config_dict=merged.config, active_context=address.context or None, config_base_path=None
    )
    user = loader._user.value if loader._user is not None else {}  # noqa: SLF001
    if problem := unsupported_setting(loader._cluster.value, user):  # noqa: SLF001
        raise RuntimeUnavailable(problem, for_staff=address.kubeconfig)
    login = user.get("exec")
    if login:
        # The library waits for it without an end.
        arguments = [f"--kill-after=2s {_LOGIN_LIMIT}s".split(), [login["command"]], login.get("args") or []]
        login |= {"command": "timeout", "args": [str(one) for part in arguments for one in part]}
    await loader.load_and_set(configuration)
    if login and not configuration.api_key and not configuration.cert_file:
        raise RuntimeUnavailable(
            "The login program in the kubeconfig of this executor failed, or gave no answer within "
            f"{_LOGIN_LIMIT} s. Run kubectl version with this kubeconfig, as the user that Kandev runs as.",
            for_staff=address.kubeconfig,
        )


def unsupported_setting(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    """Return why these entries of a kubeconfig cannot be used, as a sentence; empty if they can.

    The library ignores what it does not know: it would log in as somebody else than kubectl does, or not at all. None
    of the values is shown.
    """
    proxy = cluster.get("proxy-url")
    if proxy and not str(proxy).startswith(("http://", "https://")):
        return "proxy-url in the kubeconfig of this executor must begin with http:// or https://."
    if named := sorted(set(user) & _IMPERSONATION):
        return (
            f"The kubeconfig of this executor acts as another user ({', '.join(named)}), which Kandev does not "
            "support. Use the credentials of an account of its own."
        )
    provider = user.get("auth-provider") or {}
    if provider and provider.get("name") != "oidc":
        return (
            "The kubeconfig of this executor uses an auth-provider that kubectl no longer supports. Use a login "
            "program (exec) or a token instead."
        )
    login = user.get("exec") or {}
    if login.get("interactiveMode") == "Always":
        return "The login program in the kubeconfig of this executor asks questions, which nobody could answer."
    if login.get("provideClusterInfo"):
        return (
            "The login program in the kubeconfig of this executor wants to know the cluster (provideClusterInfo), "
            "which Kandev does not support. Use another login program, or a token."
        )
    return ""


def _import_client() -> None:
    """Import the client in a thread: it takes a second, in which the event loop must go on."""
    import kubernetes.aio.client  # noqa: PLC0415 - see above
    import kubernetes.aio.config  # noqa: F401, PLC0415 - see above

    # It logs its errors with whole entries of a kubeconfig, and the answers of a cluster with Secrets.
    logging.getLogger("kubernetes").setLevel(logging.CRITICAL)
