"""The confinement of a session's container: its identity, limits and missing rights."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.machine.git import git_process
from executors_app.machine.process import identity
from executors_app.machine.process.spawning import AGENTCTL_UID
from executors_app.runtimes.containers.sites import container_name
from executors_app.wire.errors import AgentctlRefused, LaunchFailed
from executors_app.wire.executions import Launched, LaunchSpec, Observed
from tests.docker.harness import DockerHarness
from tests.executors.harness import client_of, observe_one, row_of, seen, spec_for, start_agent
from tests.executors.launches import TOKEN
from tests.executors.repositories import make_repository, run_git

NOBODY = 54321
COMMIT = "cd {0} && echo x > made && git add made && git -c user.name=A -c user.email=a@b commit -qm 'In a container'"


async def test_container_has_names_and_limits_and_no_capabilities(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    seen = harness.inspect(spec)
    host, labels = seen["HostConfig"], seen["Config"]["Labels"]
    assert seen["Id"] == launched.container_id
    assert labels["kandev.managed"] == "true"
    assert (labels["kandev.session"], labels["kandev.task"], labels["kandev.execution"]) == (
        *(spec.session_id, spec.task_id),
        spec.execution_id,
    )
    assert host["CapDrop"] == ["ALL"]
    assert not host["Privileged"]
    assert host["ReadonlyRootfs"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (4096 << 20, 4096 << 20, 1024)
    assert {published["HostIp"] for ports in host["PortBindings"].values() for published in ports} == {"127.0.0.1"}
    assert not any("docker.sock" in mount["Source"] for mount in seen["Mounts"])
    assert seen["Config"]["Healthcheck"]["Test"]


def status_field_of(pid: int, name: str) -> list[str]:
    """Return the values of a field in ``/proc/<pid>/status``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))


async def test_agentctl_and_agent_are_two_users_without_capabilities(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    await start_agent(harness, spec, launched, "first")
    agentctl = harness.inspect(spec)["State"]["Pid"]
    children = [who.pid for who in identity.find_marked(spec.execution_id) if who.pid != agentctl]
    owner = harness.user.partition(":")[0]
    assert owner != "0"
    assert status_field_of(agentctl, "Uid")[:3] == [str(AGENTCTL_UID), owner, str(AGENTCTL_UID)]
    assert status_field_of(agentctl, "CapEff") == status_field_of(agentctl, "CapPrm") == [f"{1 << 6:016x}"], (
        "agentctl has CAP_SETGID only"
    )
    assert len(children) >= 2, "there are a guard and an agent"
    for pid in children:
        assert status_field_of(pid, "Uid") == [owner] * 4
        assert status_field_of(pid, "Groups") == []
        assert status_field_of(pid, "NoNewPrivs") == ["1"]
        assert {status_field_of(pid, f"Cap{name}")[0] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}


ATTACKS_ON_AGENTCTL = (
    "cat /var/lib/agentctl/state/token",
    "ls /var/lib/agentctl/state",
    "cat /proc/1/environ",
    "ls /proc/1/root/var/lib/agentctl",
    "kill -9 1",
    "mv /var/lib/agentctl /var/lib/elsewhere",
    "echo evil >> /opt/kandev/executors_app/agentctl/__main__.py",
    "echo evil > /etc/gitconfig",
)


async def test_agent_reaches_neither_agentctl_nor_its_files(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    tries = [f"{{ {tried}; }} > got-{n} 2>&1; echo $? > code-{n}" for n, tried in enumerate(ATTACKS_ON_AGENTCTL)]
    with pytest.raises(AgentctlRefused, match="the agent ended"):
        await start_agent(harness, spec, launched, "first", argv=["sh", "-c", "; ".join([*tries, "sleep 1"])])
    worktree = seen(harness, launched)
    for number, tried in enumerate(ATTACKS_ON_AGENTCTL):
        got = (worktree / f"got-{number}").read_text()
        assert (worktree / f"code-{number}").read_text().strip() != "0", f"{tried}: {got}"
        assert TOKEN not in got, tried
    assert (await observe_one(harness, row_of(harness, spec, launched))).observed is Observed.ALIVE


async def test_each_container_has_its_own_network(harness: DockerHarness, spec: LaunchSpec) -> None:
    other = spec_for(harness)
    for one in (spec, other):
        await harness.runtime.launch(one)
    networks = [harness.inspect(one)["NetworkSettings"]["Networks"] for one in (spec, other)]
    assert [list(network) for network in networks] == [
        [container_name(spec.execution_id)],
        [container_name(other.execution_id)],
    ]
    ids = {network["NetworkID"] for found in networks for network in found.values()}
    assert len(ids) == 2


async def test_subnet_in_use_is_skipped(harness: DockerHarness) -> None:
    config = {"subnets": "10.99.0.0/28"}
    first, second, third = (replace(spec_for(harness), config=config) for _ in range(3))
    for one in (first, second):
        await harness.runtime.launch(one)
    with harness.client() as client:
        found = [client.inspect_network(container_name(one.execution_id)) for one in (first, second)]
    assert {network["IPAM"]["Config"][0]["Subnet"] for network in found} == {"10.99.0.0/29", "10.99.0.8/29"}
    with pytest.raises(LaunchFailed, match="no free network addresses"):
        await harness.runtime.launch(third)


async def test_commit_reaches_the_team_with_the_next_push(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    start = run_git(harness.repository, "rev-parse", "main")
    code, output = harness.run(spec, "sh", "-c", COMMIT.format(launched.worktree_path))
    assert code == 0, output
    assert run_git(harness.repository, "rev-parse", launched.worktree_branch) == start, (
        "the agent cannot reach the repository"
    )
    assert await harness.runtime.push_work(row_of(harness, spec, launched)) is True
    assert run_git(harness.repository, "log", "-1", "--format=%s", launched.worktree_branch) == "In a container"
    assert run_git(harness.repository, "rev-parse", "main") == start


WRITES_OUTSIDE = (
    "echo evil > {git}/config",
    "ls {git}",
    "touch /repository/objects/info/alternates",
    "rm -r /repository/objects/pack",
    "mkdir /workspace/../elsewhere",
)


async def test_team_repository_and_borrowed_objects_cannot_be_written(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    for attempt in WRITES_OUTSIDE:
        command = attempt.format(git=harness.repository / ".git")
        code, output = harness.run(spec, "sh", "-c", f"cd {launched.worktree_path} && {command}")
        assert code != 0, attempt
        reasons = ("Read-only file system", "No such file", "Permission denied", "cannot")
        assert any(reason in output for reason in reasons), f"{attempt}: {output}"


async def test_other_sessions_and_the_data_directory_are_invisible(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched, settings: Any
) -> None:
    data = Path(settings.KANDEV_DATA_DIR)
    (data / "secret_key").write_text("secret")
    other = await harness.runtime.launch(spec_for(harness))
    for path in (data / "secret_key", data / "agentctl", seen(harness, other), Path(other.worktree_path)):
        assert harness.run(spec, "ls", str(path))[0] != 0, path
    assert harness.run(spec, "ls", launched.worktree_path)[0] == 0


@pytest.fixture
def unprivileged_home(harness: DockerHarness, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield repository and data directory of a user who may use the engine and is not root."""
    home = Path(tempfile.mkdtemp(prefix="kandev-nobody-", dir="/tmp"))
    settings.KANDEV_DATA_DIR = home / "data"
    harness.repository = make_repository(home / "repository")
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (harness.engine.home / "docker.sock").chmod(0o666)
    harness.engine.home.chmod(0o711)
    monkeypatch.setenv("HOME", str(home))
    git_process.git_environment.cache_clear()
    yield home
    git_process.git_environment.cache_clear()
    shutil.rmtree(home)


async def test_files_belong_to_kandevs_user_when_it_is_not_root(
    harness: DockerHarness, launched: Launched, unprivileged_home: Path
) -> None:
    assert launched.boot_id, "late imports were done while permitted"
    spec = spec_for(harness)
    with as_user(NOBODY):
        made = await harness.runtime.launch(spec)
        await start_agent(harness, spec, made, "first")
        await client_of(spec, made).snapshot()
        assert harness.runtime.resume_token(row_of(harness, spec, made))
    not_theirs = [path for path in unprivileged_home.rglob("*") if path.stat().st_uid != NOBODY]
    assert not not_theirs


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Run the block as a user who is not root; only the saved user leads back.

    The real user changes, too: a shell takes it on if it differs from the effective one.
    """
    os.setresgid(uid, uid, 0)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
