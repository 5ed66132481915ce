"""What a kubeconfig says of its cluster and user holds for requests and for tunnels alike, or is refused in words."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from executors_app.agentctl_client.cluster_access import ClusterAddress, unsupported_setting
from executors_app.agentctl_client.pod_tunnel import PodAddress, open_pod_tunnel
from executors_app.runtimes.kubernetes.cluster import PODS, open_cluster
from executors_app.runtimes.kubernetes.words import ClusterUnavailable
from executors_app.wire.errors import RuntimeUnavailable
from tests.docker.certificates import CLIENT, SERVER, Authority, Pair
from tests.waiting import PATIENCE

NAME = "api.cluster.internal"
"""The name in the certificate of the API server, which no resolver knows."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


@asynccontextmanager
async def api_server(authority: Authority) -> AsyncIterator[str]:
    """Yield the URL of a server that accepts only clients with a certificate, and tunnels whatever they say."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.verify_mode = ssl.CERT_REQUIRED
    pair = authority.issue("api-server", SERVER, NAME)
    context.load_cert_chain(pair.certificate, pair.key)

    async def pods(_: web.Request) -> web.Response:
        return web.json_response({"items": [], "metadata": {"resourceVersion": "7"}})

    async def forward(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await websocket.prepare(request)
        async for message in websocket:
            if message.type is WSMsgType.BINARY:
                await websocket.send_bytes(message.data)
        return websocket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/agents/pods", pods)
    app.router.add_get("/api/v1/namespaces/agents/pods/one/portforward", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(directory: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ClusterAddress:
    """Write a kubeconfig with one cluster and one user; return its address."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": user}],
    }
    path = directory / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))
    return ClusterAddress(str(path))


def files(pair: Pair) -> dict[str, Any]:
    """Return a user with a certificate, by paths relative to the kubeconfig."""
    below = "certificates"
    return {
        "client-certificate": f"{below}/{pair.certificate.name}",
        "client-key": f"{below}/{pair.key.name}",
    }


def data(pair: Pair) -> dict[str, Any]:
    """Return a user with the same certificate in the file itself."""
    return {"client-certificate-data": packed(pair.certificate), "client-key-data": packed(pair.key)}


def packed(path: Path) -> str:
    """Return a file as a kubeconfig contains it."""
    return base64.b64encode(path.read_bytes()).decode()


async def reach_both(address: ClusterAddress) -> None:
    """Send a request to the API server, and open a tunnel through it."""
    async with open_cluster(address, "agents") as cluster:
        assert await cluster.list_all(PODS) == ([], "7")
    tunnel = await open_pod_tunnel(PodAddress(address, "agents", "one"), 8700)
    try:
        await tunnel.send(b"hello")
        message = await tunnel.websocket.receive(PATIENCE)
        assert message.data == b"\0hello"
    finally:
        await tunnel.close()


@pytest.mark.parametrize("user", [files, data], ids=["paths", "data"])
async def test_names_and_certificates_hold_for_requests_and_tunnels(
    tmp_path: Path, authority: Authority, user: Any
) -> None:
    pair = authority.issue("kandev", CLIENT)
    async with api_server(authority) as server:
        ca = {"certificate-authority": "certificates/ca.pem"}
        if user is data:
            ca = {"certificate-authority-data": packed(authority.certificate)}
        await reach_both(kubeconfig(tmp_path, {"server": server, "tls-server-name": NAME, **ca}, user(pair)))


async def test_certificate_is_not_checked_where_the_kubeconfig_says_so(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("kandev", CLIENT)
    async with api_server(authority) as server:
        await reach_both(kubeconfig(tmp_path, {"server": server, "insecure-skip-tls-verify": True}, data(pair)))


@pytest.mark.parametrize("name", [None, "another.cluster.internal"])
async def test_server_with_another_name_is_trusted_by_neither(
    tmp_path: Path, authority: Authority, name: str | None
) -> None:
    pair = authority.issue("kandev", CLIENT)
    async with api_server(authority) as server:
        cluster = {"server": server, "certificate-authority": "certificates/ca.pem"}
        if name:
            cluster["tls-server-name"] = name
        address = kubeconfig(tmp_path, cluster, data(pair))
        with pytest.raises(ClusterUnavailable, match="not trusted"):
            async with open_cluster(address, "agents") as opened:
                await opened.list_all(PODS)
        with pytest.raises(ConnectionError):
            await open_pod_tunnel(PodAddress(address, "agents", "one"), 8700)


async def test_requests_and_tunnels_take_the_proxy_of_the_kubeconfig(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        cluster = {"server": "https://api.cluster.internal:6443", "proxy-url": f"http://127.0.0.1:{port}"}
        address = kubeconfig(tmp_path, cluster, {"token": "one"})
        with pytest.raises(ClusterUnavailable):
            async with open_cluster(address, "agents") as opened:
                await opened.list_all(PODS)
        with pytest.raises(ConnectionError):
            await open_pod_tunnel(PodAddress(address, "agents", "one"), 8700)
    assert asked == [b"CONNECT api.cluster.internal:6443 HTTP/1.1\r\n"] * 2


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        ({"proxy-url": "socks5://127.0.0.1:1080"}, {}, "proxy-url"),
        ({}, {"token": "t", "as": "admin"}, "another user (as)"),
        ({}, {"token": "t", "as-groups": ["system:masters"]}, "another user (as-groups)"),
        ({}, {"auth-provider": {"name": "gcp", "config": {}}}, "no longer supports"),
        ({}, {"exec": {"command": "login", "interactiveMode": "Always"}}, "asks questions"),
        ({}, {"exec": {"command": "login", "provideClusterInfo": True}}, "provideClusterInfo"),
    ],
    ids=["proxy", "other user", "other groups", "provider", "interactive", "cluster info"],
)
async def test_what_would_be_ignored_is_refused_in_words(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], said: str
) -> None:
    address = kubeconfig(tmp_path, {"server": "https://127.0.0.1:1", **cluster}, user)
    with pytest.raises(RuntimeUnavailable) as refused:
        async with open_cluster(address, "agents"):
            pass
    assert said in refused.value.message
    with pytest.raises(ConnectionError, match="kubeconfig of this executor"):
        await open_pod_tunnel(PodAddress(address, "agents", "one"), 8700)


@pytest.mark.parametrize(
    "user", [{}, {"token": "t"}, {"auth-provider": {"name": "oidc"}}, {"exec": {"interactiveMode": "IfAvailable"}}]
)
def test_what_is_supported_is_not_refused(user: dict[str, Any]) -> None:
    assert unsupported_setting({"proxy-url": "http://proxy"}, user) == ""
