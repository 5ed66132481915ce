"""What executions keep on this machine's disk, whatever they run in: worktree, journal, the agent's token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from django.conf import settings

from executors_app import worktrees
from executors_app.agentctl import identity, journal_files
from executors_app.domain import ExecutionFacts, LaunchSpec, WorkspaceState
from executors_app.errors import RepositoryUnusable
from executors_app.git import GitFailed
from executors_app.state_directory import StateDirectory, state_directory
from executors_app.worktrees import Worktree


class KeptOnThisDisk:
    """The verbs of a runtime that read what a dead agentctl has left in its state directory."""

    def is_here(self, execution: ExecutionFacts) -> bool:
        """It was never placed, runs in this boot of this machine, or left its files on this disk."""
        return execution.host_id in {"", identity.host_id()} or is_known_here(execution)

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """From what agentctl has kept in its state directory."""
        try:
            kept = orjson.loads(places_of(execution.id).resume_token_file.read_bytes())
        except (OSError, ValueError):
            return None
        token = kept.get("resume_token") if isinstance(kept, dict) else None
        return token if isinstance(token, str) and token else None

    def left_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """From the journal's files; lines of earlier epochs first, each names its own."""
        directory = journal_files.journal_directory(places_of(execution.id).path)
        try:
            return list(journal_files.read_lines(directory, after, epoch or None))
        except OSError:
            return []


def places_of(execution_id: str) -> StateDirectory:
    """The state directory of an execution."""
    return state_directory(Path(settings.KANDEV_DATA_DIR), execution_id)


def worktree_of(session_id: str, path: str, branch: str) -> Worktree:
    """As the row has it; what it lacks follows from the session's id."""
    place = worktrees.place_of(Path(settings.KANDEV_DATA_DIR), session_id)
    return Worktree(Path(path) if path else place.path, branch or place.branch)


def make_worktree(spec: LaunchSpec) -> Worktree:
    """Make the launch's worktree or find it; blocks. Raises WorkspaceGone, RepositoryUnusable."""
    if not spec.repository_path:
        raise RepositoryUnusable("The task names no repository.")
    worktree = worktree_of(spec.session_id, spec.worktree_path, spec.worktree_branch)
    worktrees.make(Path(spec.repository_path), spec.base_branch, worktree, existed=bool(spec.worktree_path))
    return worktree


def workspace_of(one: ExecutionFacts) -> tuple[WorkspaceState, str]:
    """Whether the worktree can be had, and the precise reason if it cannot; blocks, changes nothing."""
    if not one.worktree_path:
        return WorkspaceState.REBUILDABLE, ""
    worktree = worktree_of(one.session_id, one.worktree_path, one.worktree_branch)
    if not one.repository_path and not worktree.path.exists():
        return WorkspaceState.GONE, f"The worktree {worktree.path} was deleted, and its repository is not known."
    try:
        return worktrees.state(Path(one.repository_path), worktree)
    except GitFailed:
        # no answer is no proof of a loss: the launch will say what is wrong
        return WorkspaceState.REBUILDABLE, ""


def is_known_here(one: ExecutionFacts) -> bool:
    """Whether the execution's state directory, with its token in it, is on this disk."""
    try:
        return places_of(one.id).token_file.read_text() == one.auth_token
    except OSError:
        return False
