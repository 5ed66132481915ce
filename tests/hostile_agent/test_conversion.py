"""Work trees of an earlier release, linked to the team's repository, become separate workspaces."""

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
from tests.hostile_agent.scenario import STATE, AttackScenario
from tests.hostile_agent.tampering import settings_text
from tests.repositories import attacks

pytestmark = pytest.mark.django_db


@dataclass
class LinkedWorktree:
    """A linked work tree with a commit, staged, changed and untracked files."""

    spec: LaunchSpec
    path: Path
    record: Path
    branch: str

    @classmethod
    def make(cls, scenario: AttackScenario) -> LinkedWorktree:
        """Create it with git worktree add, as the earlier release did."""
        repository = scenario.harness.repository
        spec = spec_for(scenario.harness)
        worktree = worktrees.session_worktree(scenario.data, spec.session_id)
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


def test_earlier_worktree_keeps_its_work_branch_and_directory(scenario: AttackScenario) -> None:
    harness, linked = scenario.harness, LinkedWorktree.make(scenario)
    status, head = run_git(linked.path, "status", "--porcelain"), run_git(linked.path, "rev-parse", "HEAD")

    async def run_scenario() -> None:
        launched = await harness.runtime.launch(linked.spec)
        assert (launched.worktree_path, launched.worktree_branch) == (str(linked.path), linked.branch)
        assert git_in(harness, launched, "status", "--porcelain") == status
        assert git_in(harness, launched, "rev-parse", "HEAD") == head
        assert git_in(harness, launched, "symbolic-ref", "HEAD") == f"refs/heads/{linked.branch}"
        tree = seen(harness, launched)
        assert (tree / "folder/untracked").read_text() == "untracked\n"
        assert (tree / "link").readlink() == Path("README")
        assert os.access(tree / "program", os.X_OK)
        assert linked.path.is_dir(), "the old worktree stays until the new one is verified"

        client = client_of(linked.spec, launched)
        await client.commit({"message": "After", "author_name": "A", "author_email": "a@example.org"})
        head_after = git_in(harness, launched, "rev-parse", "HEAD")
        await client.write_file("newest", b"newest\n")
        await client.snapshot()
        await harness.runtime.push_work(row_of(harness, linked.spec, launched))
        archive = workspace_store.workspace_archive(linked.spec.session_id)
        assert archive.tips()[f"refs/heads/{linked.branch}"] == head_after
        assert not linked.path.exists()
        assert not linked.record.exists()
        assert run_git(harness.repository, "rev-parse", linked.branch) == head_after

        harness.kill(linked.spec)
        shutil.rmtree(harness.directory_of(linked.spec.session_id))
        again = await harness.runtime.launch(known(linked.spec, launched))
        assert (seen(harness, again) / "newest").read_text() == "newest\n"
        assert git_in(harness, again, "rev-parse", "HEAD") == head_after

    asyncio.run(run_scenario())


def test_conversion_that_is_killed_is_repeated(scenario: AttackScenario) -> None:
    harness, linked = scenario.harness, LinkedWorktree.make(scenario)
    status = run_git(linked.path, "status", "--porcelain")
    draft = harness.directory_of(f".{linked.spec.session_id}.draft")
    (draft / "converted/tree").mkdir(parents=True)
    (draft / "converted/tree/half").write_text("half\n")
    launched = asyncio.run(harness.runtime.launch(linked.spec))
    assert git_in(harness, launched, "status", "--porcelain") == status


def tamper(scenario: AttackScenario, linked: LinkedWorktree) -> None:
    """Tamper with everything that an agent of that release could write."""
    trap, host = scenario.trap, scenario.host
    settings = settings_text(trap.root, "command")
    for name, text in {
        "commondir": f"{host}/.git\n", "gitdir": f"{host}/.git\n", "config.worktree": settings, "config": settings,
        "locked": "initializing", "HEAD.lock": "", "index.lock": "", "info/attributes": "* filter=x diff=x\n",
        "objects/info/alternates": f"{host}/.git/objects\n", "MERGE_HEAD": f"{scenario.secret_commit}\n",
    }.items():  # fmt: skip
        (linked.record / name).parent.mkdir(parents=True, exist_ok=True)
        (linked.record / name).write_text(text)
    attacks.FILES["hooks"](linked.record, trap)
    (linked.record / "logs").rename(linked.record / "logs.old")
    (linked.record / "logs").symlink_to(host)
    (linked.path / ".git").write_text(f"gitdir: {host}/.git\n")
    (linked.path / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    (linked.path / "secret").symlink_to(host / "secret")
    (linked.path / "secret_key").symlink_to(scenario.data / "secret_key")
    (linked.path / "token").symlink_to(f"{STATE}/token")
    (linked.path / "folder/root").symlink_to("/")
    os.mkfifo(linked.path / "pipe")


def replace_head(_scenario: AttackScenario, linked: LinkedWorktree) -> None:
    (linked.record / "HEAD").unlink()
    (linked.record / "HEAD").symlink_to(f"{STATE}/token")


def replace_index(scenario: AttackScenario, linked: LinkedWorktree) -> None:
    (linked.record / "index").unlink()
    (linked.record / "index").symlink_to(scenario.data / "secret_key")


def garble_index(_scenario: AttackScenario, linked: LinkedWorktree) -> None:
    (linked.record / "index").write_bytes(os.urandom(5000))


def link_record(scenario: AttackScenario, linked: LinkedWorktree) -> None:
    shutil.rmtree(linked.record)
    linked.record.symlink_to(scenario.host)


def pointer_is_a_pipe(_scenario: AttackScenario, linked: LinkedWorktree) -> None:
    (linked.path / ".git").unlink()
    os.mkfifo(linked.path / ".git")


def head_names_main(_scenario: AttackScenario, linked: LinkedWorktree) -> None:
    (linked.record / "HEAD").write_text("ref: refs/heads/main\n")


@pytest.mark.parametrize(
    "tamper_more", [replace_head, replace_index, garble_index, link_record, pointer_is_a_pipe, head_names_main]
)
def test_tampered_earlier_worktree_reaches_nothing(scenario: AttackScenario, tamper_more: object) -> None:
    linked = LinkedWorktree.make(scenario)
    tamper(scenario, linked)
    assert callable(tamper_more)
    tamper_more(scenario, linked)
    scenario.reset_baseline()

    async def run_scenario() -> Victim:
        launched = await scenario.harness.runtime.launch(linked.spec)
        victim = Victim(scenario, scenario.harness, linked.spec, launched)
        victim.check_mounts()
        assert (seen(scenario.harness, launched) / "folder/untracked").read_text() == "untracked\n"
        await victim.use_live_agentctl()
        await victim.use_stored_state()
        await victim.restart()
        await victim.use_live_agentctl()
        await victim.use_stored_state()
        return victim

    victim = asyncio.run(run_scenario())
    scenario.check_isolation(victim.spec, victim.launched)
