"""What executions keep on the disk of their machine, whatever they run in: worktree, journal, the agent's token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from executors_app.agentctl import journal_files
from executors_app.agentctl.places import launch_token, worktrees
from executors_app.agentctl.places.seed import Seed, write_seed
from executors_app.agentctl.places.state_directory import StateDirectory, state_directory
from executors_app.agentctl.places.worktrees import Commits, OwnRepository, Worktree
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.errors import RepositoryUnusable


@dataclass(frozen=True, slots=True)
class Disk:
    """One data directory; every place in it follows from an id (rule 4)."""

    root: Path
    open_repository: Callable[[Path], Commits] = OwnRepository.open
    """How git is asked about the repository of a worktree; the control plane heeds none of its configuration."""

    def places_of(self, execution_id: str) -> StateDirectory:
        """The state directory of an execution."""
        return state_directory(self.root, execution_id)

    def worktree_of(self, session_id: str, path: str, branch: str) -> Worktree:
        """As the row has it; what it lacks follows from the session's id."""
        place = worktrees.place_of(self.root, session_id)
        return Worktree(Path(path) if path else place.path, branch or place.branch)

    def write_seed(self, spec: LaunchSpec) -> Worktree:
        """Write what agentctl makes the launch's worktree from; blocks. Raises RepositoryUnusable, OSError.

        agentctl makes it, or finds it, because git runs what the repository's configuration names.
        """
        if not spec.repository_path:
            raise RepositoryUnusable("The task names no repository.")
        worktree = self.worktree_of(spec.worktree_owner, spec.worktree_path, spec.worktree_branch)
        existed = bool(spec.worktree_path)
        places = self.places_of(spec.execution_id)
        places.make()
        seed = Seed(worktree.branch, repository=spec.repository_path, base=spec.base_branch, existed=existed)
        write_seed(seed, places.seed_file)
        return worktree

    def workspace_of(self, one: ExecutionFacts) -> tuple[WorkspaceState, str]:
        """Whether the worktree can be had, and the precise reason if it cannot; blocks, changes nothing."""
        if not one.worktree_path:
            return WorkspaceState.REBUILDABLE, ""
        worktree = self.worktree_of(one.worktree_id or one.session_id, one.worktree_path, one.worktree_branch)
        if not one.repository_path and not worktree.path.exists():
            return WorkspaceState.GONE, f"The worktree {worktree.path} was deleted, and its repository is not known."
        try:
            return worktrees.state(worktree, lambda: self.open_repository(Path(one.repository_path)))
        except RepositoryUnusable:
            # no answer is no proof of a loss: the launch will say what is wrong
            return WorkspaceState.REBUILDABLE, ""

    def is_known(self, one: ExecutionFacts) -> bool:
        """Whether the execution's state directory, with a token of its own in it, is here."""
        return self.token_of(one) is not None

    def token_of(self, one: ExecutionFacts) -> str | None:
        """The token of the last launch here; None where there is none that follows from the execution's secret."""
        try:
            token = self.places_of(one.id).token()
        except OSError:
            return None
        return token if launch_token.is_of(token, one.auth_token) else None

    def resume_token(self, execution_id: str) -> str | None:
        """The agent's conversation id, from what agentctl has kept in its state directory."""
        try:
            kept = orjson.loads(self.places_of(execution_id).resume_token_file.read_bytes())
        except (OSError, ValueError):
            return None
        token = kept.get("resume_token") if isinstance(kept, dict) else None
        return token if isinstance(token, str) and token else None

    def left_journal(self, execution_id: str, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """The journal behind a cursor; lines of earlier epochs first, each names its own."""
        directory = journal_files.journal_directory(self.places_of(execution_id).path)
        try:
            return list(journal_files.read_lines(directory, after, epoch or None))
        except OSError:
            return []
