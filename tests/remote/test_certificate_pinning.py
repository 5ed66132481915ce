"""The certificate of a host is compared with its pin before anything is sent, on every connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from executors_app.agentctl.host.certificate import load_or_create_certificate
from executors_app.agentctl_client.client import AgentctlClient, open_connection_pool
from executors_app.runtimes.remote.config import HostConfig
from executors_app.runtimes.remote.hosts import HostClient
from executors_app.wire.errors import AgentctlForeign
from executors_app.wire.executions import ExecutionFacts

OTHER_PIN = "sha256:" + "ab" * 32
EXECUTION = "5f0c7c1e-0000-4000-8000-000000000001"


@asynccontextmanager
async def false_host(directory: Path) -> AsyncIterator[tuple[str, str, list[bytes]]]:
    """Run a TLS server with another certificate; yield its URL, its pin and all that it receives."""
    received: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(65536))
        writer.close()

    certificate = load_or_create_certificate(directory, ["127.0.0.1"])
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=certificate.context())
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"https://127.0.0.1:{port}", certificate.fingerprint(), received


def facts_at(url: str, pin: str) -> ExecutionFacts:
    return ExecutionFacts(
        id=EXECUTION,
        session_id=EXECUTION,
        task_id=EXECUTION,
        runtime="remote",
        host_id="",
        agentctl_url=f"{url}/instances/{EXECUTION}",
        auth_token="the-secret-of-an-execution",
        status="ready",
        generation=1,
        config={"url": url, "token_file": "machine.token", "fingerprint": pin},
    )


async def _status(url: str, pin: str) -> None:
    await AgentctlClient.of(facts_at(url, pin)).status()


async def _over_a_pool(url: str, pin: str) -> None:
    async with open_connection_pool() as http:
        await AgentctlClient.of(facts_at(url, pin), http).prompt("m", "text")


async def _events(url: str, pin: str) -> None:
    async with AgentctlClient.of(facts_at(url, pin)).events(0, ""):
        pass


async def _shell(url: str, pin: str) -> None:
    async with AgentctlClient.of(facts_at(url, pin)).shell("main", 80, 24):
        pass


async def _host(url: str, pin: str) -> None:
    await HostClient(HostConfig(url, "machine.token", pin), "the-token-of-the-host", "deployment").host(5)


async def _order(url: str, pin: str) -> None:
    client = HostClient(HostConfig(url, "machine.token", pin), "the-token-of-the-host", "deployment")
    await client.create({"execution_id": EXECUTION, "token": "a-token"}, "the-secret-of-an-execution")


REQUESTS: list[Callable[[str, str], Awaitable[None]]] = [_status, _over_a_pool, _events, _shell, _host, _order]


@pytest.mark.parametrize("way", REQUESTS, ids=lambda way: way.__name__.strip("_"))
@pytest.mark.parametrize("pin", [OTHER_PIN, ""], ids=["another pin", "no pin"])
async def test_host_with_another_certificate_receives_nothing(
    way: Callable[[str, str], Awaitable[None]], pin: str, tmp_path: Path
) -> None:
    async with false_host(tmp_path) as (url, own, received):
        with pytest.raises(AgentctlForeign) as caught:
            await way(url, pin)
        assert caught.value.details["reason"] == "certificate"
        assert not any(received)
        with pytest.raises(Exception, match="agentctl"):
            await way(url, own)
        assert any(b"Bearer" in one for one in received), "the trusted host receives the token"
