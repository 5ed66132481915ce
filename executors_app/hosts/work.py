"""What a session has made on another machine, taken into the team's repository here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from executors_app import home_repository
from executors_app.agentctl.places.git import commit_of
from executors_app.domain import ExecutionFacts


def commits_here(execution: ExecutionFacts) -> list[str]:
    """What need not be sent: the session's own work as far as it is here, and what that began with."""
    repository, base = Path(execution.repository_path), execution.base_branch or "HEAD"
    known = home_repository.known(repository, execution.session_id, execution.worktree_branch)
    return [*known, *filter(None, (commit_of(repository, name) for name in (base, f"origin/{base}")))]


def take_in(execution: ExecutionFacts, refs: Mapping[str, str], bundle: bytes) -> None:
    """Move branch and snapshot to ``refs``, with what ``bundle`` brings; blocks. GitFailed."""
    repository = Path(execution.repository_path)
    with tempfile.TemporaryDirectory(prefix="kandev-home-") as directory:
        packed = Path(directory) / "bundle"
        if bundle:
            packed.write_bytes(bundle)
        home_repository.take_in(repository, packed, refs, execution.session_id, execution.worktree_branch)
