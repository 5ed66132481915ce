"""Credentials of clusters: what a kubeconfig contains is never shown, and a login program that hangs is ended."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import socket
import ssl
import stat
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from kubernetes.aio.config import ConfigException

from executors_app.agentctl_client import cluster_access
from executors_app.agentctl_client.cluster_access import ClusterAddress, open_cluster_client
from executors_app.runtimes.kubernetes.cluster import Cluster, open_cluster
from executors_app.runtimes.kubernetes.runtime import RUNTIME
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import Observed
from executors_app.wire.exhaustion import is_exhausted
from tests.docker.certificates import SERVER, Authority
from tests.kubernetes.objects import execution_facts
from tests.waiting import PATIENCE, eventually_async

SECRET = "the-secret-of-a-cluster"
"""What must not be shown anywhere."""
UNREACHABLE = MappingProxyType({"server": "https://127.0.0.1:1"})


def kubeconfig(tmp_path: Path, user: dict[str, Any], cluster: Mapping[str, str] = UNREACHABLE) -> ClusterAddress:
    """Write a kubeconfig with an entry of ``users`` and of ``clusters``; return the address of its cluster."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "kandev"}}],
        "clusters": [{"name": "one", "cluster": dict(cluster)}],
        "users": [{"name": "kandev", **user}],
    }
    path = tmp_path / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return ClusterAddress(str(path))


def login(script: str) -> dict[str, Any]:
    """Return a user whose credentials come from a shell script."""
    return {
        "user": {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "sh",
                "args": ["-c", script],
                "env": [{"name": "KANDEV_TEST_SECRET", "value": SECRET}],
            }
        }
    }


ANSWER = json.dumps(
    {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": SECRET},
    }
)


@pytest.mark.parametrize(
    "user",
    [
        {"token": SECRET},
        {"user": {"auth-provider": {"name": "oidc", "config": {"refresh-token": SECRET}}}},
        {"user": {"exec": {"apiVersion": "v1", "command": "false", "env": [{"value": SECRET}]}}},
        {"user": {"exec": {"command": SECRET}}},
        login('echo "$KANDEV_TEST_SECRET" >&2; exit 1'),
        login('echo "$KANDEV_TEST_SECRET"'),
    ],
    ids=["level is missing", "no identity provider", "bad variables", "no version", "fails", "no answer"],
)
async def test_error_of_a_kubeconfig_shows_nothing_of_it(
    tmp_path: Path, user: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RuntimeUnavailable) as refused:
        async with open_cluster_client(kubeconfig(tmp_path, user)):
            pass
    shown = "".join(traceback.format_exception(refused.value)) + refused.value.message_for_staff
    assert SECRET not in shown
    assert SECRET not in caplog.text
    assert "kubectl version" in refused.value.message


async def test_answer_of_a_login_program_is_used(tmp_path: Path) -> None:
    async with open_cluster_client(kubeconfig(tmp_path, login(f"echo '{ANSWER}'"))) as client:
        assert client.configuration.api_key == {"BearerToken": f"Bearer {SECRET}"}


async def test_login_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_access, "_LOGIN_LIMIT", 1)
    address = kubeconfig(tmp_path, login(f"echo $$ >{tmp_path}/pid; sleep 1000"))
    with pytest.raises(RuntimeUnavailable, match="gave no answer"):
        async with open_cluster_client(address):
            pass
    pid = int((tmp_path / "pid").read_text())
    await eventually_async(lambda: not Path(f"/proc/{pid}").exists(), describe="the program has ended")


async def test_credentials_are_read_once_for_all_and_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = kubeconfig(tmp_path, {"user": {"token": SECRET}})
    load, goes_on, loads = cluster_access._load, asyncio.Event(), 0

    async def slow(wanted: ClusterAddress) -> Any:
        nonlocal loads
        loads += 1
        await goes_on.wait()
        return await load(wanted)

    async def use() -> None:
        async with open_cluster_client(address):
            pass

    monkeypatch.setattr(cluster_access, "_load", slow)
    waiting = [asyncio.create_task(use()) for _ in range(3)]
    await eventually_async(lambda: loads)
    waiting.pop(0).cancel()
    goes_on.set()
    await asyncio.gather(*waiting)
    await use()
    assert loads == 1


async def test_login_that_takes_long_delays_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: ClusterAddress) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(cluster_access, "_load", hang)
    monkeypatch.setattr(cluster_access, "_LOAD_TIMEOUT", 100 * PATIENCE)
    facts = execution_facts(config={"kubeconfig": kubeconfig(tmp_path, {"user": {"token": SECRET}}).kubeconfig})
    observing = RUNTIME.observe([facts], timeout=0.1, concurrency=1)
    seen = await asyncio.wait_for(observing, PATIENCE)
    assert seen[facts.id].observed is Observed.UNKNOWN


def test_kubeconfig_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = kubeconfig(tmp_path, {"user": {"token": SECRET}})
    assert address.problem() == ""
    found = list(Path(address.kubeconfig).stat())
    found[stat.ST_UID] = 12345
    monkeypatch.setattr(Path, "stat", lambda *_, **__: os.stat_result(found))
    assert "belongs to another user" in address.problem()


def test_connection_that_the_cluster_does_not_end_lives_no_longer_than_its_client(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", SERVER, "127.0.0.1")
    trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trust.load_cert_chain(pair.certificate, pair.key)
    is_over = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with trust.wrap_socket(connection, server_side=True) as encrypted:
            encrypted.recv(65536)
            encrypted.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
            is_over.wait(PATIENCE)  # without the notification that ends TLS

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        cluster = {"server": f"https://127.0.0.1:{listener.getsockname()[1]}"}
        cluster["certificate-authority"] = str(authority.certificate)
        address = kubeconfig(tmp_path, {"user": {"token": SECRET}}, cluster)

        async def ask() -> None:
            async with open_cluster(address, "sessions") as opened:
                assert await opened.find("pods", "one") == {}

        asyncio.run(ask())
        gc.collect()  # a transport that is left open is an error
        is_over.set()
        server.join()


async def test_lack_of_descriptors_is_no_fault_of_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def exhausted(_: ClusterAddress) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(cluster_access, "_load", exhausted)
    with pytest.raises(RuntimeUnavailable, match="no file descriptors") as refused:
        async with open_cluster_client(kubeconfig(tmp_path, {"user": {"token": SECRET}})):
            pass
    assert is_exhausted(refused.value), "so that nobody takes it for a proof of absence"


BROKEN = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCm5vbmUKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="
"""What looks like a certificate, as a kubeconfig contains it."""


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"user": {"token": SECRET}}, {**UNREACHABLE, "certificate-authority-data": BROKEN}),
        ({"user": {"client-certificate-data": BROKEN, "client-key-data": BROKEN}}, UNREACHABLE),
    ],
    ids=["of the cluster", "of the user"],
)
async def test_broken_certificate_of_one_cluster_hides_nothing_of_another(
    tmp_path: Path, user: dict[str, Any], cluster: Mapping[str, str]
) -> None:
    (tmp_path / "other").mkdir()
    broken = execution_facts(id="broken", config={"kubeconfig": kubeconfig(tmp_path, user, cluster).kubeconfig})
    other_kubeconfig = kubeconfig(tmp_path / "other", {"user": {"token": SECRET}}).kubeconfig
    other = execution_facts(id="other", config={"kubeconfig": other_kubeconfig})
    seen = await RUNTIME.observe([broken, other], timeout=PATIENCE, concurrency=1)
    assert {one: found.observed for one, found in seen.items()} == dict.fromkeys(("broken", "other"), Observed.UNKNOWN)
    assert await RUNTIME.end(broken) is False
    with pytest.raises(RuntimeUnavailable, match="cannot be read") as refused:
        await RUNTIME.check_availability(broken.config)
    assert BROKEN not in str(refused.value.details)


async def test_lack_of_descriptors_for_a_certificate_is_no_fault_of_a_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    address = kubeconfig(tmp_path, {"user": {"token": SECRET}})
    await cluster_access._configuration(address)
    monkeypatch.setattr(ssl, "create_default_context", exhausted)
    with pytest.raises(RuntimeUnavailable, match="no file descriptors") as refused:
        async with open_cluster_client(address):
            pass
    assert is_exhausted(refused.value)


async def test_token_of_the_service_account_that_cannot_be_read_is_an_error_of_that_executor(tmp_path: Path) -> None:
    async with open_cluster_client(kubeconfig(tmp_path, {"user": {"token": "a-token"}})) as client:

        async def renew(_: object) -> None:
            raise ConfigException(SECRET)

        client.configuration.refresh_api_key_hook = renew
        with pytest.raises(RuntimeUnavailable, match="service account") as refused:
            await Cluster(client, "agents").list_all("pods")
    assert SECRET not in "".join(traceback.format_exception(refused.value))
