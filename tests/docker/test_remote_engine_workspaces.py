"""Workspaces that are clones in volumes of another engine: they come home, and are never silently made anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executors_app import recovery_refs
from executors_app.containers.sites import HOME_PATH, container_name
from executors_app.domain import Launched, LaunchSpec, Observed, WorkspaceState
from executors_app.errors import WorkspaceGone
from executors_app.runtimes.remote_docker import state_volume, workspace_volume
from tests.docker.remote_engine import FarPlace
from tests.executors.harness import client_of, git_in, known, look, row_of, seen, spec_for, start_agent
from tests.executors.repositories import commit, run_git


@pytest.fixture
def place(far_place: FarPlace) -> FarPlace:
    """The other engine."""
    return far_place


@pytest.fixture
def spec(place: FarPlace) -> LaunchSpec:
    """A launch that nobody has made yet."""
    return spec_for(place)


@pytest.fixture
async def launched(place: FarPlace, spec: LaunchSpec) -> Launched:
    """That launch, made."""
    return await place.runtime.launch(spec)


def remove(place: FarPlace, spec: LaunchSpec, *volumes: str) -> None:
    """The container, and volumes with it."""
    with place.client() as client:
        client.remove_container(container_name(spec.execution_id), force=True)
        for name in volumes:
            client.remove_volume(name)


async def test_committed_and_uncommitted_work_arrives(place: FarPlace, spec: LaunchSpec, launched: Launched) -> None:
    (seen(place, launched) / "committed").write_text("one\n")
    body = {"message": "Over there", "author_name": "Far", "author_email": "far@example.org"}
    await client_of(spec, launched).commit(body)
    (seen(place, launched) / "untracked").write_text("two\n")
    await client_of(spec, launched).snapshot()
    row = row_of(place, spec, launched)

    assert await place.runtime.push_work(row) is True
    assert await place.runtime.push_work(row) is False, "there is nothing new"

    kept = recovery_refs.find_saved_work(place.repository, spec.session_id, launched.worktree_branch)
    assert recovery_refs.saved_log(kept, 1, 0)["commits"][0]["subject"] == "Over there"
    assert recovery_refs.saved_status(kept)["untracked"] == ["untracked"]
    assert run_git(place.repository, "for-each-ref", "refs/kandev/arrived") == ""
    assert run_git(place.repository, "status", "--porcelain") == ""


async def test_lost_volume_is_made_again_from_what_arrived(
    place: FarPlace, spec: LaunchSpec, launched: Launched
) -> None:
    (seen(place, launched) / "mine").write_text("uncommitted\n")
    git_in(place, launched, "add", "mine")
    await client_of(spec, launched).snapshot()
    await place.runtime.push_work(row_of(place, spec, launched))
    remove(place, spec, workspace_volume(spec.session_id))

    found = await look(place, row_of(place, spec, launched))
    again = await place.runtime.launch(known(spec, launched))

    assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)
    assert again.state["rebuilt"].startswith(
        f"The volume {workspace_volume(spec.session_id)} was removed. It was rebuilt from"
    )
    assert git_in(place, again, "status", "--porcelain") == "A  mine"
    later = await place.runtime.launch(known(spec, again))
    assert "rebuilt" not in later.state, "once is enough"


async def test_lost_volume_without_arrived_work_is_gone(place: FarPlace, spec: LaunchSpec, launched: Launched) -> None:
    remove(place, spec, workspace_volume(spec.session_id))
    found = await look(place, row_of(place, spec, launched))
    assert (found.observed, found.workspace) == (Observed.DEAD, WorkspaceState.GONE)
    assert "had reached the control plane" in found.workspace_reason
    for _ in range(2):
        with pytest.raises(WorkspaceGone, match="had reached the control plane"):
            await place.runtime.launch(known(spec, launched))


async def test_a_removed_container_keeps_home_worktree_journal_and_conversation(
    place: FarPlace, spec: LaunchSpec, launched: Launched
) -> None:
    started = await start_agent(place, spec, launched, "first")
    (seen(place, launched) / "mine").write_text("uncommitted\n")
    place.run(spec, "sh", "-c", f"echo kept > {HOME_PATH}/login")
    remove(place, spec)
    row = row_of(place, spec, launched)

    found = await look(place, row)
    assert (found.observed, found.reason, found.workspace) == (
        *(Observed.DEAD, "container_gone"),
        WorkspaceState.PRESENT,
    )
    assert place.runtime.unread_journal(row, 0, ""), "read without its container"
    assert place.runtime.resume_token(row) == started["resume_token"]
    again = await place.runtime.launch(known(spec, launched))

    assert "rebuilt" not in again.state
    assert (seen(place, again) / "mine").read_text() == "uncommitted\n"
    assert place.run(spec, "cat", f"{HOME_PATH}/login") == (0, "kept\n")
    outcome = await start_agent(place, spec, again, "second", started["resume_token"])
    assert outcome["outcome"] in ("loaded", "resumed")


async def test_an_agent_over_there_reaches_neither_agentctls_things_nor_the_engine(
    place: FarPlace, spec: LaunchSpec, launched: Launched
) -> None:
    with place.client() as client:
        made = client.exec_create(launched.container_id, ["ls", "/var/lib/agentctl/state"], user="1000:1000")
        said = client.exec_start(made["Id"])
        assert client.exec_inspect(made["Id"])["ExitCode"] != 0, said
    about = place.inspect(spec)
    assert {one["Type"] for one in about["Mounts"]} == {"volume"}
    assert not [word for word in about["Config"]["Env"] if spec.auth_token in word]
    (bound,) = about["NetworkSettings"]["Ports"]["8700/tcp"]
    assert bound["HostIp"] == "127.0.0.2"
    assert launched.url.startswith("http://127.0.0.2:")


async def test_interrupted_start_is_continued(place: FarPlace, spec: LaunchSpec) -> None:
    with place.client() as client:
        for name in place.volumes_of(spec):
            client.create_volume(name, labels={"kandev.managed": "true"})
        helper = f"{container_name(spec.execution_id)}-volumes"
        client.create_container("kandev-agentctl:test", name=helper)
    launched = await place.runtime.launch(spec)
    assert (seen(place, launched) / "README").read_text() == "hello\n"
    with place.client() as client:
        left = {name for one in client.containers(all=True) for name in one["Names"]}
    assert left == {f"/{container_name(spec.execution_id)}"}, "helpers leave nothing behind"


async def test_session_starts_from_the_tasks_base(place: FarPlace) -> None:
    first = run_git(place.repository, "rev-parse", "HEAD")
    run_git(place.repository, "branch", "older")
    commit(place.repository, "newer", "newer\n")
    launched = await place.runtime.launch(replace(spec_for(place), base_branch="older"))
    assert git_in(place, launched, "rev-parse", "HEAD") == first
    assert git_in(place, launched, "rev-parse", "older") == first


async def test_orphans_over_there_are_listed_and_removed_and_their_volumes_stay(
    place: FarPlace, spec: LaunchSpec, launched: Launched
) -> None:
    (orphan,) = await place.runtime.orphans(set(), [place.config])
    assert (orphan.id, orphan.execution_id) == (container_name(spec.execution_id), spec.execution_id)
    assert await place.runtime.orphans({spec.execution_id}, [place.config]) == []
    assert await place.runtime.remove_orphan(orphan, [place.config]) is True
    assert Path(place.engine.volume(state_volume(spec.execution_id)), "token").exists()
