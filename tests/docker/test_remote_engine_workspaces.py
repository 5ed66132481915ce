"""Workspaces in volumes of a remote engine: their work arrives here, and they are never silently recreated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.repositories import recovery_refs
from executors_app.runtimes.containers.sites import HOME_PATH, container_name
from executors_app.runtimes.remote_docker.site import state_volume, workspace_volume
from executors_app.wire.errors import WorkspaceGone
from executors_app.wire.executions import Launched, LaunchSpec, Observed, WorkspaceState
from tests.docker.harness import ADD_SUBMODULE
from tests.docker.remote_engine import RemoteEngineHarness
from tests.executors.harness import client_of, git_in, known, observe_one, row_of, seen, spec_for, start_agent
from tests.executors.repositories import commit, run_git


@pytest.fixture
def harness(remote_harness: RemoteEngineHarness) -> RemoteEngineHarness:
    """Return the harness of the remote engine."""
    return remote_harness


def remove(harness: RemoteEngineHarness, spec: LaunchSpec, *volumes: str) -> None:
    """Remove the container of a launch, and these volumes."""
    with harness.client() as client:
        client.remove_container(container_name(spec.execution_id), force=True)
        for name in volumes:
            client.remove_volume(name)


async def test_committed_and_uncommitted_work_arrives(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    (seen(harness, launched) / "committed").write_text("one\n")
    body = {"message": "Over there", "author_name": "Far", "author_email": "far@example.org"}
    await client_of(spec, launched).commit(body)
    (seen(harness, launched) / "untracked").write_text("two\n")
    await client_of(spec, launched).snapshot()
    row = row_of(harness, spec, launched)

    assert await harness.runtime.push_work(row) is True
    assert await harness.runtime.push_work(row) is False, "there is nothing new to push"

    kept = recovery_refs.find_saved_work(harness.repository, spec.session_id, launched.worktree_branch)
    assert recovery_refs.saved_log(kept, 1, 0)["commits"][0]["subject"] == "Over there"
    assert recovery_refs.saved_status(kept)["untracked"] == ["untracked"]
    assert run_git(harness.repository, "for-each-ref", "refs/kandev/arrived") == ""
    assert run_git(harness.repository, "status", "--porcelain") == ""


async def test_lost_volume_is_rebuilt_from_the_archive(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    (seen(harness, launched) / "mine").write_text("uncommitted\n")
    git_in(harness, launched, "add", "mine")
    await client_of(spec, launched).snapshot()
    await harness.runtime.push_work(row_of(harness, spec, launched))
    remove(harness, spec, workspace_volume(spec.session_id))

    found = await observe_one(harness, row_of(harness, spec, launched))
    again = await harness.runtime.launch(known(spec, launched))

    assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)
    assert again.state["rebuilt"].startswith(
        f"The volume {workspace_volume(spec.session_id)} was removed. It was rebuilt from"
    )
    assert git_in(harness, again, "status", "--porcelain") == "A  mine"
    later = await harness.runtime.launch(known(spec, again))
    assert "rebuilt" not in later.state, "the workspace is rebuilt only once"


async def test_work_inside_a_submodule_is_rebuilt_from_the_archive(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    code, output = harness.run(spec, "sh", "-c", ADD_SUBMODULE, "sh", launched.worktree_path)
    assert code == 0, output
    before = git_in(harness, launched, "status", "--porcelain")
    await client_of(spec, launched).snapshot()
    await harness.runtime.push_work(row_of(harness, spec, launched))
    kept = recovery_refs.find_saved_work(harness.repository, spec.session_id, launched.worktree_branch)
    (shown,) = recovery_refs.saved_status(kept)["submodules"]
    assert {entry["path"] for entry in shown["files"]} == {"sub/f.txt", "sub/new"}
    remove(harness, spec, workspace_volume(spec.session_id))

    again = await harness.runtime.launch(known(spec, launched))

    assert git_in(harness, again, "status", "--porcelain") == before
    for name, content in (("f.txt", "precious\n"), ("g.txt", "committed\n"), ("new", "new\n")):
        assert (seen(harness, again) / "sub" / name).read_text() == content


async def test_lost_volume_without_arrived_work_is_gone(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    remove(harness, spec, workspace_volume(spec.session_id))
    found = await observe_one(harness, row_of(harness, spec, launched))
    assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.GONE)
    assert "had reached the control plane" in found.workspace_reason
    for _ in range(2):
        with pytest.raises(WorkspaceGone, match="had reached the control plane"):
            await harness.runtime.launch(known(spec, launched))


async def test_removed_container_keeps_home_worktree_journal_and_conversation(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    started = await start_agent(harness, spec, launched, "first")
    (seen(harness, launched) / "mine").write_text("uncommitted\n")
    harness.run(spec, "sh", "-c", f"echo kept > {HOME_PATH}/login")
    remove(harness, spec)
    row = row_of(harness, spec, launched)

    found = await observe_one(harness, row)
    assert (found.observed, found.reason, found.workspace) == (
        *(Observed.DEAD, "container_gone"),
        WorkspaceState.PRESENT,
    )
    assert harness.runtime.unread_journal(row, 0, ""), "the journal is readable without its container"
    assert harness.runtime.resume_token(row) == started["resume_token"]
    again = await harness.runtime.launch(known(spec, launched))

    assert "rebuilt" not in again.state
    assert (seen(harness, again) / "mine").read_text() == "uncommitted\n"
    assert harness.run(spec, "cat", f"{HOME_PATH}/login") == (0, "kept\n")
    outcome = await start_agent(harness, spec, again, "second", started["resume_token"])
    assert outcome["outcome"] in ("loaded", "resumed")


async def test_remote_agent_reaches_neither_agentctls_files_nor_the_engine(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    with harness.client() as client:
        made = client.exec_create(launched.container_id, ["ls", "/var/lib/agentctl/state"], user="1000:1000")
        output = client.exec_start(made["Id"])
        assert client.exec_inspect(made["Id"])["ExitCode"] != 0, output
    about = harness.inspect(spec)
    assert {one["Type"] for one in about["Mounts"]} == {"volume"}
    assert not [word for word in about["Config"]["Env"] if spec.auth_token in word]
    (bound,) = about["NetworkSettings"]["Ports"]["8700/tcp"]
    assert bound["HostIp"] == "127.0.0.2"
    assert launched.url.startswith("http://127.0.0.2:")


async def test_interrupted_start_is_continued(harness: RemoteEngineHarness, spec: LaunchSpec) -> None:
    with harness.client() as client:
        for name in harness.volumes_of(spec):
            client.create_volume(name, labels={"kandev.managed": "true"})
        helper = f"{container_name(spec.execution_id)}-volumes"
        client.create_container("kandev-agentctl:test", name=helper)
    launched = await harness.runtime.launch(spec)
    assert (seen(harness, launched) / "README").read_text() == "hello\n"
    with harness.client() as client:
        left = {name for one in client.containers(all=True) for name in one["Names"]}
    assert left == {f"/{container_name(spec.execution_id)}"}, "no helper container is left"


async def test_session_starts_from_the_tasks_base(harness: RemoteEngineHarness) -> None:
    first = run_git(harness.repository, "rev-parse", "HEAD")
    run_git(harness.repository, "branch", "older")
    commit(harness.repository, "newer", "newer\n")
    launched = await harness.runtime.launch(replace(spec_for(harness), base_branch="older"))
    assert git_in(harness, launched, "rev-parse", "HEAD") == first
    assert git_in(harness, launched, "rev-parse", "older") == first


async def test_remote_orphans_are_removed_and_their_volumes_stay(
    harness: RemoteEngineHarness, spec: LaunchSpec, launched: Launched
) -> None:
    (orphan,) = await harness.runtime.orphans(set(), [harness.config])
    assert (orphan.id, orphan.execution_id) == (container_name(spec.execution_id), spec.execution_id)
    assert await harness.runtime.orphans({spec.execution_id}, [harness.config]) == []
    assert await harness.runtime.remove_orphan(orphan, [harness.config]) is True
    assert Path(harness.engine.volume(state_volume(spec.execution_id)), "token").exists()
