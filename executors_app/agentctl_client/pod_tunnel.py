"""TCP tunnels into Pods through the API server of their cluster, which is how agentctl is reached from outside of it.

``.../pods/NAME/portforward`` as a WebSocket (``v4.channel.k8s.io``): the first byte of each message is its channel,
0 for data and 1 for an error; the first message of each channel names the port.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from executors_app.agentctl_client.cluster_access import ClusterAddress, open_cluster_client
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.protocol import SOCKET_MESSAGE_LIMIT

SUFFIX: Final = ".pod.invalid"
"""Suffix of the host in a Pod's agentctl URL; such names never resolve (RFC 6761)."""
ADDRESS_LIMIT: Final = 200
"""Bytes that path and context of a kubeconfig may have together: the URL has to fit into its column."""
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES: Final = 2
_CLOSE_TIMEOUT: Final = aiohttp.ClientWSTimeout(ws_close=2.0)


@dataclass(frozen=True, slots=True)
class PodAddress:
    """A Pod of a cluster."""

    cluster: ClusterAddress
    namespace: str
    name: str

    def url(self, port: int) -> str:
        """Return the URL of a port of the Pod, the same in every process."""
        where = f"{self.cluster.kubeconfig}\0{self.cluster.context}".encode()
        packed = base64.b32encode(where).decode().rstrip("=").lower()
        return f"http://{self.name}.{self.namespace}.{packed}{SUFFIX}:{port}"


def pod_in_host(host: str | None) -> PodAddress | None:
    """Return the Pod that an agentctl URL's host names; None if it names none."""
    if not host or not host.endswith(SUFFIX):
        return None
    name, _, rest = host.removesuffix(SUFFIX).partition(".")
    namespace, _, packed = rest.partition(".")
    try:
        where = base64.b32decode(packed.upper() + "=" * (-len(packed) % 8)).decode()
    except ValueError:
        return None
    kubeconfig, found, context = where.partition("\0")
    if not found or not kubeconfig.startswith("/"):
        return None
    return PodAddress(ClusterAddress(kubeconfig, context), namespace, name)


class PodTunnel:
    """An open connection to a port of a Pod."""

    def __init__(self, client: Any, websocket: aiohttp.ClientWebSocketResponse):
        self._client, self.websocket = client, websocket
        self._announced: set[int] = set()

    async def send(self, chunk: bytes) -> None:
        """Send bytes to the port."""
        await self.websocket.send_bytes(bytes([_DATA]) + chunk)

    def received(self, message: aiohttp.WSMessage) -> bytes:
        """Return the bytes from the port in a message. Raises ConnectionError if the port reported an error."""
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            return b""
        channel, data = message.data[0], message.data[1:]
        if channel not in self._announced:
            self._announced.add(channel)
            return b""
        if channel == _ERROR and data:
            raise ConnectionError("the Pod's port does not accept connections")
        return bytes(data) if channel == _DATA else b""

    async def close(self) -> None:
        """Close the connection."""
        try:
            await self.websocket.close()
        finally:
            await self._client.__aexit__(None, None, None)


async def open_pod_tunnel(pod: PodAddress, port: int) -> PodTunnel:
    """Open a connection to a port of a Pod. Raises ConnectionError."""
    opened = open_cluster_client(pod.cluster)
    try:
        client = await opened.__aenter__()
    except RuntimeUnavailable as error:
        raise ConnectionError(error.message) from error
    try:
        websocket = await _open_websocket(client, pod, port)
    except BaseException:
        await opened.__aexit__(None, None, None)
        raise
    return PodTunnel(opened, websocket)


async def _open_websocket(client: Any, pod: PodAddress, port: int) -> aiohttp.ClientWebSocketResponse:
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/portforward"
    headers: dict[str, str] = dict(client.default_headers)
    await client.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    rest = client.rest_client
    if rest.pool_manager is None:
        # As the client's own WebSockets do.
        rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001
    url = f"{client.configuration.host}{path}?ports={port}"
    try:
        websocket: aiohttp.ClientWebSocketResponse = await rest.pool_manager.ws_connect(
            url,
            headers=headers,
            protocols=(_PROTOCOL,),
            heartbeat=20,
            max_msg_size=SOCKET_MESSAGE_LIMIT,
            compress=0,
            timeout=_CLOSE_TIMEOUT,
            proxy=rest.proxy,
            # As the client's own requests: None for the name in the URL.
            server_hostname=client.configuration.tls_server_name,
        )
    except aiohttp.WSServerHandshakeError as error:
        raise ConnectionError(f"the cluster refused a connection to the Pod {pod.name}: HTTP {error.status}") from error
    except aiohttp.ClientError as error:
        raise ConnectionError(f"the cluster cannot be reached: {type(error).__name__}") from error
    return websocket
