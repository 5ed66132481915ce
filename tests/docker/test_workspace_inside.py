"""The workspace of a session in a container: shells, snapshots, and what a new container keeps."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from executors_app.agentctl_client.streams import ShellStream
from executors_app.runtimes.containers.sites import HOME_PATH, container_name
from executors_app.wire.executions import LaunchSpec
from tests.docker.harness import ADD_SUBMODULE, DockerHarness
from tests.docker.remote_engine import RemoteEngineHarness
from tests.executors.harness import client_of, forget, git_in, known, seen


@pytest.fixture(params=["local_docker", "remote_docker"])
def harness(request: pytest.FixtureRequest) -> DockerHarness:
    """Return the harness of each runtime on Docker."""
    found: DockerHarness | RemoteEngineHarness = request.getfixturevalue(
        "remote_harness" if request.param == "remote_docker" else "local_harness"
    )
    return found


async def read_until(shell: ShellStream, words: bytes) -> bytes:
    """Return the shell's output, read until it contains ``words``."""
    output = b""
    async with asyncio.timeout(30):
        async for part in shell:
            output += part if isinstance(part, bytes) else b""
            if words in output:
                break
    return output


async def test_container_shell_runs_as_agent_and_outlives_its_reader(harness: DockerHarness, spec: LaunchSpec) -> None:
    launched = await harness.runtime.launch(spec)
    client = client_of(spec, launched)
    async with client.shell("main", 80, 24) as shell:
        await shell.type(b"echo at=$(pwd) user=$(id -u) tty=$(test -t 0 && echo yes)\n")
        output = await read_until(shell, b"tty=yes\r")
        assert f"at={launched.worktree_path} user={harness.user.partition(':')[0]} tty=yes".encode() in output
        await shell.resize(132, 43)
        await shell.type(b"stty size; word=walrus\n")
        await read_until(shell, b"43 132")
    async with client.shell("main", 132, 43) as again:
        await read_until(again, b"43 132")
        await again.type(b"echo it-was-$word; exit 7\n")
        output = await read_until(again, b"it-was-walrus")


async def test_container_snapshot_restores_modified_untracked_and_staged_files(
    harness: DockerHarness, spec: LaunchSpec
) -> None:
    launched = await harness.runtime.launch(spec)
    client, worktree = client_of(spec, launched), seen(harness, launched)
    for name in ("one", "two"):
        await client.write_file(name, b"first\n")
    await client.commit({"message": "Two files", "author_name": "In", "author_email": "in@example.org"})
    for name in ("README", "one", "two", "new", "newer", "staged"):
        await client.write_file(name, f"work in {name}\n".encode(), "*" if name in ("README", "one", "two") else None)
    git_in(harness, launched, "add", "staged")
    before = git_in(harness, launched, "status", "--porcelain")
    assert len(before.splitlines()) == 6
    await client.snapshot()
    harness.kill(spec)
    shutil.rmtree(worktree)
    forget(harness, launched, branch=False)

    again = await harness.runtime.launch(known(spec, launched))

    assert git_in(harness, again, "status", "--porcelain") == before
    for name in ("README", "one", "two", "new", "newer", "staged"):
        assert (worktree / name).read_text() == f"work in {name}\n"


async def test_recreated_container_keeps_home_and_worktree(harness: DockerHarness, spec: LaunchSpec) -> None:
    launched = await harness.runtime.launch(spec)
    (seen(harness, launched) / "mine").write_text("uncommitted\n")
    assert harness.run(spec, "sh", "-c", f"echo kept > {HOME_PATH}/login && echo lost > /tmp/scratch")[0] == 0
    with harness.client() as client:
        client.remove_container(container_name(spec.execution_id), force=True, v=True)

    again = await harness.runtime.launch(known(spec, launched))

    assert again.container_id != launched.container_id
    assert harness.run(spec, "cat", f"{HOME_PATH}/login") == (0, "kept\n")
    assert harness.run(spec, "cat", "/tmp/scratch")[0] != 0, "the scratch file is gone"
    assert git_in(harness, again, "status", "--porcelain") == "?? mine"


async def test_work_inside_a_submodule_is_shown_and_returns(harness: DockerHarness, spec: LaunchSpec) -> None:
    launched = await harness.runtime.launch(spec)
    client, worktree = client_of(spec, launched), seen(harness, launched)
    code, output = harness.run(spec, "sh", "-c", ADD_SUBMODULE, "sh", launched.worktree_path)
    assert code == 0, output
    (submodule,) = (await client.git("status"))["submodules"]
    assert {entry["path"]: entry["change"] for entry in submodule["files"]} == {
        "sub/f.txt": "modified",
        "sub/new": "untracked",
    }
    before = git_in(harness, launched, "status", "--porcelain")
    assert (await client.snapshot())["left_out"] == []
    harness.kill(spec)
    shutil.rmtree(worktree)
    forget(harness, launched, branch=False)

    again = await harness.runtime.launch(known(spec, launched))

    assert git_in(harness, again, "status", "--porcelain") == before
    sub = worktree / "sub"
    contents = {name: (sub / name).read_text() for name in ("f.txt", "g.txt", "new")}
    assert contents == {"f.txt": "precious\n", "g.txt": "committed\n", "new": "new\n"}
    code, output = harness.run(spec, "git", "-C", f"{again.worktree_path}/sub", "log", "-1", "--format=%s %D")
    assert (code, output.strip()) == (0, "Only here HEAD -> work")
