"""``manage.py serve`` refuses unsafe settings, and after a kill the next one gets the same port."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from executors_app.machine.process import identity
from tests.drills.deployment import Deployment
from tests.services import ROOT
from tests.waiting import eventually


def command(data_dir: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    env = {**os.environ, "KANDEV_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1"}
    return [sys.executable, "manage.py", "serve", *arguments], env


def refusal(data_dir: Path, *arguments: str) -> str:
    """Return the line with which serve refuses to start."""
    argv, env = command(data_dir, *arguments)
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    return ended.stderr


@pytest.mark.parametrize("host", ["192.0.2.1", "kandev.example"])
def test_public_address_requires_a_key_and_hosts(host: str, tmp_path: Path) -> None:
    assert "set KANDEV_SECRET_KEY and KANDEV_ALLOWED_HOSTS first" in refusal(tmp_path, "--host", host)


def test_busy_port_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refusal(tmp_path, "--port", port)


@contextmanager
def serving(data_dir: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run serve and return the process and its port."""
    argv, env = command(data_dir, "--port", str(port))
    with subprocess.Popen(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            match = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
            assert match
            yield process, int(match[1])
        finally:
            process.terminate()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory with a migrated database."""
    prepared = Deployment(tmp_path)
    prepared.prepare()
    return prepared.data


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a running serve that tests leave unchanged."""
    prepared = Deployment(tmp_path_factory.mktemp("served"))
    prepared.prepare()
    with serving(prepared.data) as process_and_port:
        yield process_and_port


def answers(port: int, host: str = "127.0.0.1") -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", headers={"Host": f"{host}:{port}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as refused:
        refused.close()
        return False


def children_of(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_browser_host_name_is_reserved_on_ipv6(served: tuple[subprocess.Popen[str], int]) -> None:
    process, port = served
    assert process.stdout
    assert process.stdout.readline() == f"In a browser: http://kandev.localhost:{port}/\n"
    assert answers(port, "kandev.localhost") and answers(port, "localhost")
    assert not answers(port, "other.localhost")
    with socket.socket(socket.AF_INET6) as intruder, pytest.raises(OSError, match="in use"):
        intruder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        intruder.bind(("::1", port))


def test_only_the_web_server_shares_the_socket_of_serve(served: tuple[subprocess.Popen[str], int]) -> None:
    """A copy in another process would keep the port busy after a kill."""
    process, port = served
    assert answers(port)
    eventually(lambda: {"kandev-web", "kandev-supervis", "kandev-worker"} == names_of(process.pid).keys())
    ours, named = sockets_of(process.pid), names_of(process.pid)
    assert [name for name, pid in named.items() if sockets_of(pid) & ours] == ["kandev-web"]


def test_serve_has_a_single_thread_because_it_forks(served: tuple[subprocess.Popen[str], int]) -> None:
    process, port = served
    assert answers(port)
    assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1


def test_host_name_is_not_printed_where_another_program_serves_it(data: Path) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        with serving(data, port) as (process, _):
            process.terminate()
            assert process.stdout
            assert "kandev.localhost" not in process.stdout.read()


def test_requested_restart_kills_and_restarts_all_processes(data: Path) -> None:
    with serving(data) as (serve, port):
        assert answers(port)
        before = children_of(serve.pid)
        (data / "restart-wanted.json").write_text('{"by": "ada"}')
        eventually((data / "restarted.json").exists, timeout=60, describe="the processes were killed")
        eventually(lambda: not any(map(exists, before)), describe="the processes have ended")
        document = json.loads((data / "restarted.json").read_text())
        assert (document["by"], document["killed"]) == ("ada", ["web", "supervisor", "worker"])
        # the request is deleted only after the result is stored
        eventually(lambda: not (data / "restart-wanted.json").exists(), describe="the restart request is deleted")
        assert answers(port)
        eventually(lambda: len(children_of(serve.pid)) == 3, describe="all three processes run again")
        assert (data / "serve.json").stat().st_mode & 0o777 == 0o600


def exists(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    found = identity.read_stat(pid)
    return found is not None and not found.ended


def test_killed_serve_leaves_the_port_to_the_next_one(data: Path) -> None:
    with serving(data) as (first, port):
        assert answers(port)
        eventually(lambda: len(children_of(first.pid)) == 3, describe="all three processes run")
        children = children_of(first.pid)
        first.kill()
        first.wait()
        with serving(data, port) as (_, again):
            assert again == port
            assert answers(port)
        eventually(
            lambda: not any(map(exists, children)), timeout=90, describe="the first server's processes have ended"
        )


def names_of(pid: int) -> dict[str, int]:
    """Return the pid of each child of a process by its name."""
    return {Path(f"/proc/{child}/comm").read_text().strip(): child for child in children_of(pid)}


def sockets_of(pid: int) -> set[str]:
    """Return the sockets that a process has open."""
    opened = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    return {name for name in opened if name.startswith("socket:")}


def test_stopped_serve_ends_its_children(data: Path) -> None:
    with serving(data) as (process, port):
        assert answers(port)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not any(map(exists, children))


def reports(data: Path) -> dict[str, bool]:
    """Return the roles that have reported, each with whether its process has reported its end."""
    with closing(sqlite3.connect(data / "kandev.sqlite3", timeout=60)) as database:
        return dict(database.execute("SELECT role, ended_at IS NOT NULL FROM host_processes").fetchall())


def test_each_process_reports_that_it_is_there_and_that_it_ends(data: Path) -> None:
    roles = ("supervisor", "web", "worker")
    with serving(data) as (process, port):
        assert answers(port)
        eventually(lambda: reports(data) == dict.fromkeys(roles, False), describe="all three have reported")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert reports(data) == dict.fromkeys(roles, True)
