"""Value types about executions and the places they run in; no I/O, no Django."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

LOCAL: Final = "local_standalone"
"""The runtime whose agentctls are processes of the control plane's own machine."""


class ExecutorStatus(StrEnum):
    """``executors_running.status``."""

    STARTING = "starting"
    READY = "ready"
    ERROR = "error"
    STOPPED = "stopped"


class Observed(StrEnum):
    """Whether an execution was seen alive or dead; *unknown* is not *dead*."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class WorkspaceState(StrEnum):
    """Whether an execution's worktree is present or can be rebuilt."""

    PRESENT = "present"
    REBUILDABLE = "rebuildable"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """One ``executors_running`` row, as runtimes and the client need it."""

    id: str
    session_id: str
    task_id: str
    runtime: str
    host_id: str
    agentctl_url: str
    auth_token: str = field(repr=False)
    """The secret that the token of each launch follows from (``launch_token.bearer_of``)."""
    status: str
    generation: int
    pid: int | None = None
    container_id: str = ""
    repository_path: str = ""
    base_branch: str = ""
    workspace_path: str = ""
    worktree_path: str = ""
    worktree_branch: str = ""
    worktree_id: str = ""
    """The session whose worktree it works in; empty: its own."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The runtime's own: for local_standalone the process identity of agentctl; ``launch``: the nonce of its token."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``Executor.config`` of its place."""

    @property
    def worktree_owner(self) -> str:
        """The id that the worktree's path, branch and recovery ref follow from."""
        return self.worktree_id or self.session_id


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one execution at one moment, as a runtime observed it."""

    observed: Observed
    reason: str = ""
    """Why it is dead or unknown: ``process_gone``, ``timeout``, ``other_host``, ``refused`` ..."""
    report: Mapping[str, Any] | None = None
    """The answer of ``GET /status`` (``protocol.Status``) of an alive one."""
    url: str = ""
    """Where it answered; may differ from the row's after a half-done launch."""
    pid: int | None = None
    workspace: WorkspaceState = WorkspaceState.PRESENT
    workspace_reason: str = ""
    """For a workspace that is gone: the precise reason, as shown to people."""
    leftovers: int = 0
    """Marked processes of a dead agentctl that still live."""
    seen_at: datetime | None = None
    state: Mapping[str, Any] | None = None
    """The runtime's own facts where they are better than the row's."""

    @classmethod
    def unknown(cls, reason: str) -> Observation:
        """Return an observation that proves neither life nor death."""
        return cls(Observed.UNKNOWN, reason, seen_at=datetime.now(UTC))

    @classmethod
    def dead(
        cls,
        reason: str,
        workspace: WorkspaceState = WorkspaceState.PRESENT,
        workspace_reason: str = "",
        leftovers: int = 0,
    ) -> Observation:
        """Return the observation of an execution that is proven dead."""
        return cls(
            Observed.DEAD,
            reason,
            workspace=workspace,
            workspace_reason=workspace_reason,
            leftovers=leftovers,
            seen_at=datetime.now(UTC),
        )


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a runtime needs to launch an execution; all of it follows from database rows."""

    execution_id: str
    session_id: str
    task_id: str
    repository_path: str
    base_branch: str
    auth_token: str = field(repr=False)
    """The execution's secret; a new agentctl gets a token that follows from it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``Executor.config``."""
    worktree_path: str = ""
    worktree_branch: str = ""
    """Empty at the first launch: the runtime chooses them from the ids."""
    worktree_id: str = ""
    """The session whose worktree it works in; empty: its own."""

    @property
    def worktree_owner(self) -> str:
        """The id that the worktree's path, branch and recovery ref follow from."""
        return self.worktree_id or self.session_id


@dataclass(frozen=True, slots=True)
class Launched:
    """A running agentctl and its workspace."""

    url: str
    pid: int | None
    boot_id: str
    workspace_path: str
    worktree_id: str
    worktree_path: str
    worktree_branch: str
    found: bool = False
    """An earlier, half-done launch was found again."""
    container_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The runtime's own; ``rebuilt`` in it says for people from what a lost workspace had to be made again."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something labelled as this deployment's that belongs to no row; it is removed only on request."""

    id: str
    """Its name where it lives, for example a container's."""
    execution_id: str
    """Of the row that it once belonged to."""
    status: str
    is_helper: bool = False
    """A short-lived container that a kill left behind; the row of its execution may well be there."""


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """A notice that the container or host of executions has ended or fallen silent."""

    session_id: str
    """Empty: something may have been missed, all should be looked at."""
    place_id: str = ""
    """What it was, for example a container's id; the session may run in another one by now."""
    ended: bool = True
    """False: something in it died, out of memory."""
    silent: bool = False
    """Nobody answers there any more, so a stream from there may seem to live for ever; names no session."""
