"""Work trees of the earlier release, linked to the team's repository, become workspaces of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from executors_app import workspace_store
from executors_app.agentctl.workspace import worktrees
from executors_app.domain import LaunchSpec
from tests.executors.harness import client_of, git_in, known, row_of, seen, spec_for
from tests.executors.repositories import commit, run_git
from tests.hostile_agent.actions import Victim
from tests.hostile_agent.tampering import settings_text
from tests.hostile_agent.world import STATE, World
from tests.repositories import attacks

pytestmark = pytest.mark.django_db


@dataclass
class Earlier:
    """A linked work tree with a commit, staged, changed and untracked files."""

    spec: LaunchSpec
    path: Path
    record: Path
    branch: str

    @classmethod
    def make(cls, world: World) -> Earlier:
        """As the earlier release made it, with git worktree add."""
        repository = world.harness.repository
        spec = spec_for(world.harness)
        worktree = worktrees.session_worktree(world.data, spec.session_id)
        worktree.path.parent.mkdir(exist_ok=True)
        run_git(repository, "worktree", "add", "--quiet", "-b", worktree.branch, str(worktree.path), "main")
        commit(worktree.path, "committed", "committed\n")
        (worktree.path / "staged").write_text("staged\n")
        run_git(worktree.path, "add", "staged")
        (worktree.path / "README").write_text("changed\n")
        (worktree.path / "folder").mkdir()
        (worktree.path / "folder/untracked").write_text("untracked\n")
        (worktree.path / "program").write_text("#!/bin/sh\n")
        (worktree.path / "program").chmod(0o755)
        (worktree.path / "link").symlink_to("README")
        spec = replace(spec, worktree_path=str(worktree.path), worktree_branch=worktree.branch)
        return cls(spec, worktree.path, repository / ".git/worktrees" / spec.session_id, worktree.branch)


def test_earlier_worktree_keeps_its_work_branch_and_directory(world: World) -> None:
    harness, earlier = world.harness, Earlier.make(world)
    status, head = run_git(earlier.path, "status", "--porcelain"), run_git(earlier.path, "rev-parse", "HEAD")

    async def play() -> None:
        launched = await harness.runtime.launch(earlier.spec)
        assert (launched.worktree_path, launched.worktree_branch) == (str(earlier.path), earlier.branch)
        assert git_in(harness, launched, "status", "--porcelain") == status
        assert git_in(harness, launched, "rev-parse", "HEAD") == head
        assert git_in(harness, launched, "symbolic-ref", "HEAD") == f"refs/heads/{earlier.branch}"
        tree = seen(harness, launched)
        assert (tree / "folder/untracked").read_text() == "untracked\n"
        assert (tree / "link").readlink() == Path("README")
        assert os.access(tree / "program", os.X_OK)
        assert earlier.path.is_dir(), "it stays until the new one is verified"

        client = client_of(earlier.spec, launched)
        await client.commit({"message": "After", "author_name": "A", "author_email": "a@example.org"})
        made = git_in(harness, launched, "rev-parse", "HEAD")
        await client.write_file("newest", b"newest\n")
        await client.snapshot()
        await harness.runtime.push_work(row_of(harness, earlier.spec, launched))
        assert workspace_store.workspace_archive(earlier.spec.session_id).tips()[f"refs/heads/{earlier.branch}"] == made
        assert not earlier.path.exists()
        assert not earlier.record.exists()
        assert run_git(harness.repository, "rev-parse", earlier.branch) == made

        harness.kill(earlier.spec)
        shutil.rmtree(harness.directory_of(earlier.spec.session_id))
        again = await harness.runtime.launch(known(earlier.spec, launched))
        assert (seen(harness, again) / "newest").read_text() == "newest\n"
        assert git_in(harness, again, "rev-parse", "HEAD") == made

    asyncio.run(play())


def test_conversion_that_is_killed_is_repeated(world: World) -> None:
    harness, earlier = world.harness, Earlier.make(world)
    status = run_git(earlier.path, "status", "--porcelain")
    draft = harness.directory_of(f".{earlier.spec.session_id}.draft")
    (draft / "converted/tree").mkdir(parents=True)
    (draft / "converted/tree/half").write_text("half\n")
    launched = asyncio.run(harness.runtime.launch(earlier.spec))
    assert git_in(harness, launched, "status", "--porcelain") == status


def tamper(world: World, earlier: Earlier) -> None:
    """Everything that an agent of that release could write, at once."""
    trap, host = world.trap, world.host
    settings = settings_text(trap.root, "command")
    for name, text in {
        "commondir": f"{host}/.git\n", "gitdir": f"{host}/.git\n", "config.worktree": settings, "config": settings,
        "locked": "initializing", "HEAD.lock": "", "index.lock": "", "info/attributes": "* filter=x diff=x\n",
        "objects/info/alternates": f"{host}/.git/objects\n", "MERGE_HEAD": f"{world.secret_commit}\n",
    }.items():  # fmt: skip
        (earlier.record / name).parent.mkdir(parents=True, exist_ok=True)
        (earlier.record / name).write_text(text)
    attacks.FILES["hooks"](earlier.record, trap)
    (earlier.record / "logs").rename(earlier.record / "logs.old")
    (earlier.record / "logs").symlink_to(host)
    (earlier.path / ".git").write_text(f"gitdir: {host}/.git\n")
    (earlier.path / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    (earlier.path / "secret").symlink_to(host / "secret")
    (earlier.path / "secret_key").symlink_to(world.data / "secret_key")
    (earlier.path / "token").symlink_to(f"{STATE}/token")
    (earlier.path / "folder/root").symlink_to("/")
    os.mkfifo(earlier.path / "pipe")


def replace_head(_world: World, earlier: Earlier) -> None:
    (earlier.record / "HEAD").unlink()
    (earlier.record / "HEAD").symlink_to(f"{STATE}/token")


def replace_index(world: World, earlier: Earlier) -> None:
    (earlier.record / "index").unlink()
    (earlier.record / "index").symlink_to(world.data / "secret_key")


def garble_index(_world: World, earlier: Earlier) -> None:
    (earlier.record / "index").write_bytes(os.urandom(5000))


def link_record(world: World, earlier: Earlier) -> None:
    shutil.rmtree(earlier.record)
    earlier.record.symlink_to(world.host)


def pointer_is_a_pipe(_world: World, earlier: Earlier) -> None:
    (earlier.path / ".git").unlink()
    os.mkfifo(earlier.path / ".git")


def head_names_main(_world: World, earlier: Earlier) -> None:
    (earlier.record / "HEAD").write_text("ref: refs/heads/main\n")


@pytest.mark.parametrize(
    "more", [replace_head, replace_index, garble_index, link_record, pointer_is_a_pipe, head_names_main]
)
def test_tampered_earlier_worktree_reaches_nothing(world: World, more: object) -> None:
    earlier = Earlier.make(world)
    tamper(world, earlier)
    assert callable(more)
    more(world, earlier)
    world.begin_again()

    async def play() -> Victim:
        launched = await world.harness.runtime.launch(earlier.spec)
        victim = Victim(world, world.harness, earlier.spec, launched)
        victim.inspect_mounts()
        assert (seen(world.harness, launched) / "folder/untracked").read_text() == "untracked\n"
        await victim.look_alive()
        await victim.look_dead()
        await victim.start_again()
        await victim.look_alive()
        await victim.look_dead()
        return victim

    victim = asyncio.run(play())
    world.inspect(victim.spec, victim.launched)
