"""The files of executions on one machine: state directories, worktrees and journals.

Every path follows from an id, so that an unfinished launch is found again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from executors_app.machine.git import ref_locks, worktrees
from executors_app.machine.git.rebuild_plan import RepositoryLookup
from executors_app.machine.git.seeds import Seed, write_seed
from executors_app.machine.git.worktrees import OwnedRepository, Worktree
from executors_app.machine.process.identity import ABSENT
from executors_app.wire import journal_files
from executors_app.wire.errors import LaunchFailed, RepositoryUnusable
from executors_app.wire.executions import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.wire.launch_tokens import is_token_of

_LOCK_TIMEOUT: Final = 60.0


class StateDirectory:
    """``<data>/agentctl/<execution id>/``, readable only by its owner."""

    def __init__(self, path: Path):
        self.path = path
        self.socket = path / "agentctl.sock"
        """The Unix socket that agentctl listens on."""
        self.token_file = path / "token"
        """The bearer token that agentctl accepts."""
        self.ready_file = path / "ready.json"
        """``{"url", "pid", "boot_id", "started_at"}``, written once agentctl listens."""
        self.lock_file = path / "lock"
        """Locked by agentctl while it lives."""
        self.resume_token_file = path / "token.json"
        """The agent's conversation: ``{"resume_token", "last_message_uuid"}``."""
        self.log_file = path / "agentctl.log"
        """Standard output and standard error of agentctl."""
        self.seed_file = path / "seed"
        """The seed that the workspace is created from (``worktrees.Seed``)."""

    def create(self) -> None:
        """Create the directory, readable only by its owner."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)

    @contextmanager
    def start_lock(self) -> Iterator[int]:
        """Allow one start of this execution at a time; raises LaunchFailed if another takes more than a minute.

        Yields the locked descriptor.
        """
        lock = os.open(self.path / "launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not ref_locks.wait_for_lock(lock, _LOCK_TIMEOUT):
                raise LaunchFailed("Another start of this session's agentctl is still running. Try again.")
            yield lock
        finally:
            os.close(lock)

    def token(self) -> str:
        """Return the token of the last launch; empty if there was none. Raises OSError."""
        try:
            return self.token_file.read_text()
        except FileNotFoundError:
            return ""

    def write_token(self, token: str) -> None:
        """Write the token atomically, mode 0600."""
        temporary = self.token_file.with_name(f".token.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.token_file)


def state_directory(data_directory: Path, execution_id: str) -> StateDirectory:
    """Return the state directory of an execution."""
    return StateDirectory(data_directory / "agentctl" / execution_id)


@dataclass(frozen=True, slots=True)
class ExecutionStorage:
    """One data directory; every path in it follows from an id."""

    root: Path
    open_repository: Callable[[Path], RepositoryLookup] = OwnedRepository.open
    """Opens the repository of a worktree for git queries; the control plane ignores its configuration."""

    def state_directory_of(self, execution_id: str) -> StateDirectory:
        """Return the state directory of an execution."""
        return state_directory(self.root, execution_id)

    def worktree_of(self, session_id: str, path: str, branch: str) -> Worktree:
        """Return the recorded worktree; what the row lacks follows from the session's id."""
        default = worktrees.session_worktree(self.root, session_id)
        return Worktree(Path(path or default.path), branch or default.branch)

    def write_seed(self, spec: LaunchSpec) -> Worktree:
        """Write the seed of a launch's worktree. Blocks; raises RepositoryUnusable, OSError.

        agentctl creates the worktree, not the control plane, because git runs programs that the repository's
        configuration names.
        """
        if not spec.repository_path:
            raise RepositoryUnusable("The task has no repository.")
        worktree = self.worktree_of(spec.worktree_owner, spec.worktree_path, spec.worktree_branch)
        existed = bool(spec.worktree_path)
        directory = self.state_directory_of(spec.execution_id)
        directory.create()
        seed = Seed(worktree.branch, repository=spec.repository_path, base=spec.base_branch, existed=existed)
        write_seed(seed, directory.seed_file)
        return worktree

    def workspace_state(self, execution: ExecutionFacts) -> tuple[WorkspaceState, str]:
        """Whether the worktree exists or can be rebuilt, and the reason if not. Blocks; changes nothing."""
        if not execution.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        worktree = self.worktree_of(execution.worktree_owner, execution.worktree_path, execution.worktree_branch)
        if not execution.repository_path and not worktree.path.exists():
            return WorkspaceState.GONE, f"The worktree {worktree.path} was deleted, and its repository is unknown."
        try:
            return worktrees.worktree_state(worktree, lambda: self.open_repository(Path(execution.repository_path)))
        except RepositoryUnusable:
            # An unusable repository does not prove a loss: the next launch reports what is wrong.
            return WorkspaceState.REBUILDABLE, ""

    def is_known(self, execution: ExecutionFacts) -> bool:
        """Whether the execution's state directory is here, with its own token."""
        return self.token_of(execution) is not None

    def token_of(self, execution: ExecutionFacts) -> str | None:
        """Return the token of the last launch here; None if it is not derived from the execution's secret.

        Raises OSError if it cannot be found out.
        """
        try:
            token = self.state_directory_of(execution.id).token()
        except (*ABSENT, UnicodeDecodeError):
            return None
        if is_token_of(token, execution.auth_token):
            return token
        return None

    def resume_token(self, execution_id: str) -> str | None:
        """Return the agent's conversation id that agentctl saved in its state directory; None if there is none.

        Raises OSError if it cannot be found out.
        """
        try:
            content = orjson.loads(self.state_directory_of(execution_id).resume_token_file.read_bytes())
        except (*ABSENT, ValueError):
            return None
        if not isinstance(content, dict):
            return None
        token = content.get("resume_token")
        if isinstance(token, str) and token:
            return token
        return None

    def unread_journal(self, execution_id: str, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """Return the journal lines after a cursor, those of earlier epochs first; each names its epoch.

        Raises OSError if it cannot be found out.
        """
        directory = journal_files.journal_directory(self.state_directory_of(execution_id).path)
        try:
            return list(journal_files.read_lines(directory, after, epoch or None))
        except ABSENT:
            return []
