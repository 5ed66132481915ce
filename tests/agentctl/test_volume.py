"""A session's volume while no agentctl runs on it: prepared with a seed, and read."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl_client.client import HttpClient
from executors_app.wire.errors import AgentctlForeign, AgentctlRefused, AgentctlUnreachable
from tests.network import free_port
from tests.services import ROOT
from tests.waiting import PATIENCE, eventually_async

TOKEN = "a-token-of-one-launch"
PROGRAM = [sys.executable, "-P", "-m", "executors_app.agentctl.volume"]


@asynccontextmanager
async def served(tmp_path: Path, *arguments: str) -> AsyncIterator[tuple[HttpClient, subprocess.Popen[bytes]]]:
    """Run the program and yield a client of it."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    port = free_port()
    command = [
        *PROGRAM,
        *arguments,
        "--token-file",
        str(token),
        "--listen",
        f"127.0.0.1:{port}",
        "--deadline",
        "600",
    ]
    process = subprocess.Popen(  # noqa: ASYNC220 - it is quick
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE
    )
    client = HttpClient(f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {TOKEN}"})

    async def is_up() -> bool:
        try:
            await client.get("/health")
        except AgentctlUnreachable:
            return False
        return True

    try:
        await eventually_async(is_up, 60)
        yield client, process
    finally:
        process.kill()
        process.communicate()


def prepare(volume: Path, execution: str = "e1") -> list[str]:
    owner = f"{os.getuid()}:{os.getgid()}"
    return ["prepare", "--volume", str(volume), "--execution-id", execution, "--run-as", owner]


async def test_seed_of_any_size_arrives_whole_and_ends_the_wait(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    seed = os.urandom(1 << 20) * 5
    async with served(tmp_path, *prepare(volume)) as (client, process):
        state = volume / "state" / "e1"
        assert ((state / "token").read_text(), state.stat().st_mode & 0o777) == (TOKEN, 0o700)
        assert (volume / "workspace").is_dir()
        assert (volume / "home").is_dir()
        with pytest.raises(AgentctlRefused):
            await client.upload("/seed?sha256=wrong", io.BytesIO(seed), {}, timeout=30)
        assert not (state / "seed").exists()
        answer = await client.upload(
            f"/seed?sha256={hashlib.sha256(seed).hexdigest()}", io.BytesIO(seed), {}, timeout=30
        )
        assert answer == {"size": len(seed)}
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert (state / "seed").read_bytes() == seed
        assert (state / "seed").stat().st_mode & 0o777 == 0o600


async def test_seed_that_arrives_while_another_one_does_is_whole(tmp_path: Path) -> None:
    """As from two control planes of which one has lost its lease."""
    volume = tmp_path / "volume"
    volume.mkdir()
    state, seed = volume / "state" / "e1", os.urandom(1 << 20) * 5
    path = f"/seed?sha256={hashlib.sha256(seed).hexdigest()}"

    async def in_two_parts(goes_on: asyncio.Event) -> AsyncIterator[bytes]:
        yield seed[: 1 << 20]
        await goes_on.wait()
        yield seed[1 << 20 :]

    async with served(tmp_path, *prepare(volume)) as (client, process):
        go_on = [asyncio.Event(), asyncio.Event()]
        sending = []
        for number, event in enumerate(go_on):
            content: Any = in_two_parts(event)
            sending.append(asyncio.create_task(client.upload(path, content, {}, timeout=PATIENCE)))

            def arrives(number: int = number) -> bool:
                return len([one for one in state.glob(".seed*") if one.stat().st_size]) > number

            await eventually_async(arrives, describe="it arrives")
        go_on[0].set()
        assert await sending[0] == {"size": len(seed)}
        assert (state / "seed").read_bytes() == seed
        go_on[1].set()
        await asyncio.gather(sending[1], return_exceptions=True)
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    assert (state / "seed").read_bytes() == seed
    assert not list(state.glob(".*"))


async def test_seed_of_an_earlier_start_is_not_taken_for_this_one(tmp_path: Path) -> None:
    state = tmp_path / "volume" / "state" / "e1"
    state.mkdir(parents=True)
    (state / "seed").write_bytes(b"old")
    async with served(tmp_path, *prepare(tmp_path / "volume")) as (_, process):
        assert not (state / "seed").exists()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) != 0  # so that agentctl does not start


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_files_of_an_earlier_user_are_given_to_the_new_one(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    outside.write_text("not ours")
    home = volume / "home"
    deep = home / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "file").write_text("work")
    (deep / "file").chmod(0o600)
    (home / "link").symlink_to(outside)
    (volume / "workspace").mkdir()
    (volume / "state" / "e1" / "journal").mkdir(parents=True)
    subprocess.run(["chown", "-Rh", "2000:2000", home, volume / "workspace", volume / "state" / "e1"], check=True)
    arguments = prepare(volume)[:-1]
    run_to_its_end(tmp_path, *arguments, "3000:3001")
    owners = {path.relative_to(volume): path.lstat() for path in volume.rglob("*") if path != volume / "state"}
    assert {(one.st_uid, one.st_gid) for one in owners.values()} == {(3000, 3001)}
    assert (deep / "file").stat().st_mode & 0o777 == 0o600
    assert outside.stat().st_uid == 0
    assert (volume / "state").stat().st_uid == 0


def run_to_its_end(tmp_path: Path, *arguments: str) -> int:
    """Run the program until it ends by itself; return its exit code."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    more = ["--token-file", str(token), "--listen", "127.0.0.1:0", "--deadline", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*PROGRAM, *arguments, *more], env=environment, capture_output=True, check=False).returncode


def test_wait_for_a_seed_ends_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    assert run_to_its_end(tmp_path, *prepare(tmp_path / "volume")) == 2


async def test_nothing_is_taken_without_the_token(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    async with served(tmp_path, *prepare(tmp_path / "volume")) as (client, _):
        stranger = HttpClient(client._url, {"Authorization": "Bearer another"})
        with pytest.raises(AgentctlForeign):
            await stranger.upload("/seed?sha256=x", io.BytesIO(b"x"), {}, timeout=30)


@pytest.mark.parametrize("execution", ["", "..", "a/b", ".hidden"])
def test_execution_that_is_no_name_is_refused(tmp_path: Path, execution: str) -> None:
    (tmp_path / "volume").mkdir()
    assert run_to_its_end(tmp_path, *prepare(tmp_path / "volume", execution)) == 2
    assert list((tmp_path / "volume").iterdir()) == []


async def test_left_journal_and_conversation_are_sent_and_never_the_token(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "journal").mkdir(parents=True)
    (state / "journal" / "00000000000000000001.jsonl").write_text("{}\n")
    (state / "token.json").write_text("{}")
    (state / "token").write_text("secret")
    packed = io.BytesIO()
    async with served(tmp_path, "read", "--state-dir", str(state)) as (client, _):
        await client.download("/state", {}, packed, limit=1 << 20, timeout=30)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        assert {name for name in tar.getnames() if "." in name} == {"journal/00000000000000000001.jsonl", "token.json"}
