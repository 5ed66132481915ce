"""The repositories that a host works on: those that were allowed, by path or by URL, and no others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.host.allowed_repositories import AllowedRepositories
from executors_app.repositories import recovery_refs
from executors_app.wire.errors import LaunchFailed, RepositoryUnusable, RuntimeUnavailable, WorkspaceGone
from executors_app.wire.executions import Observed, WorkspaceState
from tests.executors.harness import client_of, known, observe_one, row_of, spec_for
from tests.executors.repositories import commit, make_repository, run_git
from tests.remote.harness import RemoteHarness
from tests.remote.machines import Machine

FORBIDDEN = [
    "",
    "relative/path",
    "/etc",
    "/",
    "{inside}/../..",
    "{inside}\0",
    "~",
    "-c",
    "--upload-pack=touch /tmp/x",
    "https://elsewhere.example/x.git",
    "file:///etc",
    "file://{outside}",
    "file://{inside}-beside/x",
    "file://{inside}/../outside",
    "file://{inside}/%2e%2e/outside",
    "file://user:password@{inside}",
    "ext::sh -c id",
    "git@host.example:x.git",
    "http://169.254.169.254/latest",
]


@pytest.fixture
def machine(tmp_path: Path, repository: Path) -> Iterator[Machine]:
    """Yield a host that allows the repository by its URL, and a folder."""
    folder = tmp_path / "open"
    folder.mkdir()
    make_repository(tmp_path / "outside")
    (folder / "link").symlink_to(tmp_path / "outside")
    made = Machine(tmp_path / "machine", [f"file://{repository}", str(folder)])
    made.start()
    yield made
    made.close()


@pytest.fixture
def harness(machine: Machine, repository: Path, tmp_path: Path, settings: Any) -> RemoteHarness:
    """Return a harness in which the repository has a path here and a URL on the host."""
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    made = RemoteHarness(machine, repository, tmp_path)
    made.config["repositories"] = {str(repository): f"file://{repository}"}
    return made


@pytest.mark.parametrize("question", FORBIDDEN)
def test_only_allowed_repositories_are_used(repository: Path, tmp_path: Path, question: str) -> None:
    outside = make_repository(tmp_path / "outside")
    sources = AllowedRepositories([f"file://{repository}", str(repository)], tmp_path / "root")
    question = question.replace("{inside}", str(repository)).replace("{outside}", str(outside))
    with pytest.raises(RepositoryUnusable, match=r".+\."):
        sources.find(question, "", existed=False)
    assert not (tmp_path / "root").exists()


async def test_refusal_names_the_repository_that_is_not_allowed(harness: RemoteHarness, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnusable, match="--repositories"):
        await harness.runtime.launch(replace(spec_for(harness), repository_path=str(tmp_path / "outside")))
    assert not (harness.machine.root / "worktrees").exists()


async def test_link_out_of_an_allowed_folder_is_refused(harness: RemoteHarness, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnusable, match="does not allow the repository"):
        await harness.runtime.launch(replace(spec_for(harness), repository_path=str(tmp_path / "open" / "link")))


async def test_url_is_cloned_once_and_updated_for_each_session(harness: RemoteHarness) -> None:
    first = await harness.runtime.launch(spec_for(harness))
    newest = commit(harness.repository, "LATER", "later\n")
    run_git(harness.repository, "branch", "topic")
    second = await harness.runtime.launch(replace(spec_for(harness), base_branch="topic"))
    assert not Path(first.worktree_path, "LATER").exists()
    assert run_git(Path(second.worktree_path), "rev-parse", "HEAD") == newest
    assert len(list((harness.machine.root / "repositories").iterdir())) == 1
    assert "kandev/" not in run_git(harness.repository, "branch", "--list"), (
        "the team's repository has no branch of the session"
    )


async def test_uncommitted_work_in_a_clone_survives_its_worktree(harness: RemoteHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    Path(launched.worktree_path, "mine").write_text("uncommitted\n")
    await client_of(spec, launched).snapshot()
    harness.kill(spec)
    shutil.rmtree(launched.worktree_path)
    seen = await observe_one(harness, row_of(harness, spec, launched))
    assert (seen.observed, seen.workspace) == (Observed.DEAD, WorkspaceState.REBUILDABLE)
    shutil.move(harness.repository, harness.repository.with_name("away"))
    again = await harness.runtime.launch(known(spec, launched))
    assert Path(again.worktree_path, "mine").read_text() == "uncommitted\n"


async def test_work_in_a_clone_arrives_once(harness: RemoteHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    worktree = Path(launched.worktree_path)
    newest = commit(worktree, "DONE", "done\n")
    (worktree / "mine").write_text("uncommitted\n")
    await client_of(spec, launched).snapshot()
    facts = row_of(harness, spec, launched)
    assert await harness.runtime.push_work(facts) is True
    assert await harness.runtime.push_work(facts) is False
    harness.machine.close()

    kept = recovery_refs.find_saved_work(harness.repository, spec.session_id, launched.worktree_branch)
    assert kept.head == newest
    assert recovery_refs.read_saved_content(kept, "mine")["content"] == "uncommitted\n"
    with pytest.raises(RuntimeUnavailable):
        await harness.runtime.push_work(facts)


async def test_lost_clone_is_reported_and_never_replaced(harness: RemoteHarness) -> None:
    spec = spec_for(harness)
    launched = await harness.runtime.launch(spec)
    harness.kill(spec)
    shutil.rmtree(harness.machine.root / "repositories")
    shutil.rmtree(launched.worktree_path)
    assert (await observe_one(harness, row_of(harness, spec, launched))).workspace is WorkspaceState.GONE
    with pytest.raises(WorkspaceGone, match="clone of the repository was deleted"):
        await harness.runtime.launch(known(spec, launched))


async def test_repository_that_cannot_be_fetched_can_be_retried(harness: RemoteHarness) -> None:
    shutil.move(harness.repository, harness.repository.with_name("away"))
    with pytest.raises(LaunchFailed, match="fetch"):
        await harness.runtime.launch(spec_for(harness))
    shutil.move(harness.repository.with_name("away"), harness.repository)
    assert (await harness.runtime.launch(spec_for(harness))).url
