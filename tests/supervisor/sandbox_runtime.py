"""A runtime whose workspaces have their own repositories; pushes write real archives."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from executors_app.machine.git import recovery_snapshots
from executors_app.repositories import workspace_store
from executors_app.wire.executions import ExecutionFacts
from tests.supervisor.recording_runtime import RecordingRuntime


class SandboxRuntime(RecordingRuntime):
    """A runtime that writes a workspace's snapshot into its real archive."""

    name = "sandbox"

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.refs: dict[str, str] = {}
        """The content that a workspace's recovery ref points to, by the session that owns it."""
        self.pushed: list[str] = []
        self.tries = 0
        self.refusals: list[Exception] = []

    async def push_work(self, execution: ExecutionFacts) -> bool:
        """Wait until the runtime is open, then push."""
        self.tries += 1
        await self.is_open.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        self.pushed.append(execution.session_id)
        owner = execution.worktree_id or execution.session_id
        put(workspace_store.workspace_archive(owner).path, owner, self.refs[owner])
        return True


def put(archive: Path, owner: str, content: str) -> None:
    """Point an archive's recovery ref at the commit of ``content``."""
    if not archive.exists():
        archive.mkdir(parents=True)
        git(archive, "init", "-q", "--bare")
    made = commit_in(archive, content)
    git(archive, "update-ref", recovery_snapshots.session_recovery_ref(owner), made)


def commit_in(repository: Path, content: str) -> str:
    """Create a commit that depends only on ``content``."""
    tree = git(repository, "hash-object", "-t", "tree", "-w", "--stdin")
    return git(repository, "commit-tree", tree, "-m", content)


def git(repository: Path, *words: str) -> str:
    """Run git in a repository, with a fixed author and time; return its output."""
    who = {f"GIT_{one}_{what}": value for one in ("AUTHOR", "COMMITTER") for what, value in WHO.items()}
    done = subprocess.run(
        ["git", *words], cwd=repository, env=who, input="", capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


WHO = {"NAME": "Ada", "EMAIL": "ada@example.invalid", "DATE": "2026-01-01T00:00:00Z"}
