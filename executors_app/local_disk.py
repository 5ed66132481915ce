"""The disk of this machine: what executions keep in our own data directory, whatever they run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings

from executors_app.agentctl import identity
from executors_app.agentctl.places.disk import Disk
from executors_app.agentctl.places.state_directory import StateDirectory
from executors_app.domain import ExecutionFacts, WorkspaceState
from executors_app.repositories.team import TeamRepository


class KeptOnThisDisk:
    """The verbs of a runtime that read what a dead agentctl has left in its state directory."""

    def is_here(self, execution: ExecutionFacts) -> bool:
        """It was never placed, runs in this boot of this machine, or left its files on this disk."""
        return execution.host_id in {"", identity.host_id()} or is_known_here(execution)

    def resume_token(self, execution: ExecutionFacts) -> str | None:
        """From what agentctl has kept in its state directory."""
        return disk().resume_token(execution.id)

    def left_journal(self, execution: ExecutionFacts, after: int, epoch: str) -> Sequence[Mapping[str, Any]]:
        """From the journal's files; lines of earlier epochs first, each names its own."""
        return disk().left_journal(execution.id, after, epoch)


def disk() -> Disk:
    """Our data directory."""
    return Disk(Path(settings.KANDEV_DATA_DIR), TeamRepository.open)


def places_of(execution_id: str) -> StateDirectory:
    """The state directory of an execution."""
    return disk().places_of(execution_id)


def workspace_of(one: ExecutionFacts) -> tuple[WorkspaceState, str]:
    """Whether the worktree can be had, and the precise reason if it cannot; blocks, changes nothing."""
    return disk().workspace_of(one)


def is_known_here(one: ExecutionFacts) -> bool:
    """Whether the execution's state directory, with its token in it, is on this disk."""
    return disk().is_known(one)
