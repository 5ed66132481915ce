"""A token is sent only to the recorded agentctl of this machine, whoever listens in its place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine import sockets
from executors_app.machine.bulk_status import StatusTarget, poll_status
from executors_app.machine.listeners import AgentctlListener
from executors_app.machine.process import execution_processes, identity
from executors_app.machine.storage import StateDirectory
from executors_app.runtimes.local_standalone.runtime import RUNTIME
from executors_app.wire import launch_tokens, socket_urls
from executors_app.wire.errors import AgentctlForeign, AgentctlUnreachable
from executors_app.wire.executions import Launched, LaunchSpec, Observed
from executors_app.wire.protocol import EXECUTION_MARKER
from tests.executors.foreign_processes import as_root, other_user, process_of_another_user, recording
from tests.executors.launches import client_of, kill, observe, row
from tests.support.fake_agentctl import refusing_url
from tests.waiting import PATIENCE


async def test_token_is_not_sent_to_a_port_of_this_machine(spec: LaunchSpec) -> None:
    url = refusing_url()
    address = ("127.0.0.1", urlsplit(url).port or 0)
    with recording(address) as stranger:
        facts = row(spec, agentctl_url=url, state={"process": identity.identify_self().to_json()})
        with pytest.raises(AgentctlUnreachable) as caught:
            await AgentctlClient.of(facts).status()
        assert caught.value.details["reason"] == "bad_url"
        assert (await observe(facts)).observed is not Observed.ALIVE
        assert stranger.received() == b""


@as_root
async def test_socket_of_another_user_receives_nothing(spec: LaunchSpec) -> None:
    directory = Path("/tmp") / f"kandev-{spec.execution_id}"
    directory.mkdir()
    directory.chmod(0o777)
    path = directory / "agentctl.sock"
    try:
        with recording(str(path)) as stranger:
            facts = row(spec, agentctl_url=socket_urls.unix_url(path))
            with pytest.raises(AgentctlForeign) as caught:
                await AgentctlClient.of(facts).status()
            assert caught.value.details["reason"] == "other_user"
            assert (await observe(facts)).reason == "foreign"
            assert stranger.received() == b""
    finally:
        path.unlink(missing_ok=True)
        directory.rmdir()


async def test_launch_listens_in_a_private_directory(launched: Launched, directory: StateDirectory) -> None:
    assert launched.url == socket_urls.unix_url(directory.socket)
    assert directory.socket.stat().st_mode & 0o777 == 0o600
    assert directory.path.stat().st_mode & 0o777 == 0o700


_ASKS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(b"GET /health HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
    print(connection.recv(4096).decode().split("\\r\\n")[0])
"""


@as_root
def test_agentctl_serves_no_process_of_another_user(directory: StateDirectory, launched: Launched) -> None:
    # No other user gets this far; the file permissions are lifted to test the check behind them.
    link = Path("/tmp") / f"kandev-{directory.path.name}.sock"
    os.link(directory.socket, link)
    try:
        link.chmod(0o666)
        argv = [sys.executable, "-I", "-S", "-c", _ASKS, str(link)]
        done = subprocess.run(other_user(argv), capture_output=True, text=True, cwd="/", timeout=PATIENCE, check=True)
        assert done.stdout.split()[1] == "403"
        own = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert own.stdout.split()[1] == "200"
    finally:
        link.unlink()


async def test_each_launch_has_its_own_token(spec: LaunchSpec, launched: Launched, directory: StateDirectory) -> None:
    first = directory.token()
    kill(launched)
    known = replace(spec, worktree_path=launched.worktree_path, worktree_branch=launched.worktree_branch)
    again = await RUNTIME.launch(known)
    assert directory.token() != first
    assert spec.auth_token not in (first, directory.token())
    with pytest.raises(AgentctlForeign):
        await AgentctlClient(again.url, first, spec.execution_id).status()
    assert await client_of(spec, again).status()


async def test_old_row_finds_successor_at_the_same_socket(spec: LaunchSpec, launched: Launched) -> None:
    kill(launched)
    known = replace(spec, worktree_path=launched.worktree_path, worktree_branch=launched.worktree_branch)
    again = await RUNTIME.launch(known)
    assert again.url == launched.url
    with pytest.raises(AgentctlUnreachable) as caught:
        await client_of(spec, launched).status()
    assert caught.value.details["reason"] == "replaced"
    seen = await observe(row(spec, launched))
    assert (seen.observed, seen.pid, seen.state) == (Observed.ALIVE, again.pid, again.state)


async def test_restored_row_of_an_earlier_launch_finds_the_live_agentctl(spec: LaunchSpec, launched: Launched) -> None:
    state = {**launched.state, launch_tokens.LAUNCH_KEY: "0" * 32}
    seen = await observe(row(spec, launched, state=state))
    assert (seen.observed, seen.state) == (Observed.ALIVE, launched.state)


@as_root
def test_process_of_another_user_is_not_our_agentctl(spec: LaunchSpec) -> None:
    looks = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()", execution_processes.AGENTCTL_MODULE]
    argv = [*looks, "--execution-id", spec.execution_id]
    with process_of_another_user(argv, {EXECUTION_MARKER: spec.execution_id}) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline()
        assert not execution_processes.is_agentctl(stranger.pid, spec.execution_id)
        assert execution_processes.find_processes(spec.execution_id).agentctl == []


async def test_socket_with_a_full_backlog_times_out(tmp_path: Path) -> None:
    path = tmp_path / "full.sock"
    tmp_path.chmod(0o700)
    waiting = []
    with sockets.listen_unix(path, 0):
        try:
            while True:
                one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                waiting.append(one)
                one.connect(str(path))
        except BlockingIOError:
            pass
        with pytest.raises(AgentctlUnreachable) as caught:
            await poll_status(StatusTarget("e", socket_urls.unix_url(path), "t"), 0.2)
        for one in waiting:
            one.close()
    assert caught.value.details["reason"] == "timeout"


@pytest.mark.parametrize("url", ["unix:", "unix:relative", "unix:/", "unix:%00", "http://[::1", "http://localhost:1"])
async def test_invalid_address_is_refused(url: str) -> None:
    listener = AgentctlListener(url, None)
    with pytest.raises(AgentctlUnreachable) as caught:
        await AgentctlClient(listener, "token", "execution").status()
    assert caught.value.details["reason"] == "bad_url"
    with pytest.raises(AgentctlUnreachable) as caught:
        await poll_status(StatusTarget("execution", url, "token", listener=listener), 5)
    assert caught.value.details["reason"] == "bad_url"


async def test_path_of_any_length_can_be_listened_on(tmp_path: Path) -> None:
    directory = tmp_path.joinpath(*["a directory with a name of its own"] * 5)
    directory.mkdir(parents=True, mode=0o700)
    path = directory / "agentctl.sock"
    assert len(str(path)) > 150
    with sockets.listen_unix(path, 5), await sockets.connect_unix(path) as connection:
        assert sockets.peer_credentials(connection) == sockets.PeerCredentials(os.getpid(), os.geteuid())
    assert socket_urls.unix_path(socket_urls.unix_url(path)) == path


async def test_only_stale_sockets_are_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "agentctl.sock"
    sockets.listen_unix(path, 5).close()
    assert path.exists()
    with pytest.raises(ConnectionRefusedError):
        await sockets.connect_unix(path)
    with sockets.listen_unix(path, 5):
        with pytest.raises(OSError, match="in use"):
            sockets.listen_unix(path, 5)
        (await sockets.connect_unix(path)).close()
    path.unlink()
    with pytest.raises(ConnectionRefusedError):
        await sockets.connect_unix(path)


def test_no_socket_is_created_in_an_unsafe_place(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        sockets.listen_unix(tmp_path / "agentctl.sock", 5)
    tmp_path.chmod(0o700)
    (tmp_path / "agentctl.sock").write_text("notes")
    with pytest.raises(FileExistsError):
        sockets.listen_unix(tmp_path / "agentctl.sock", 5)
    assert (tmp_path / "agentctl.sock").read_text() == "notes"


def test_token_is_derived_from_its_secret() -> None:
    token, other = (
        launch_tokens.mint_launch_token("a-secret-of-some-length"),
        launch_tokens.mint_launch_token("a-secret-of-some-length"),
    )
    assert token != other
    assert launch_tokens.is_token_of(token, "a-secret-of-some-length")
    assert launch_tokens.is_token_of("a-secret-of-some-length", "a-secret-of-some-length")
    assert not launch_tokens.is_token_of(token, "another-secret-of-some-length")
    assert not launch_tokens.is_token_of("", "")
    noted = launch_tokens.token_state(token)
    assert launch_tokens.bearer_token("a-secret-of-some-length", noted) == token
    assert launch_tokens.bearer_token("a-secret-of-some-length", {"launch": 3}) == "a-secret-of-some-length"
