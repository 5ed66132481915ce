"""Value types about executions and the places they run in; no I/O, no Django."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

LOCAL: Final = "local_standalone"
"""The runtime that runs agentctl on the control plane's own machine."""
NODE: Final = "node"
"""Key of an execution's ``state``: the node of a cluster on which its runtime has seen it."""

PLACE: Final = "namespace"
"""Key of an execution's ``state``: the uid of the namespace of a cluster in which it was started."""
LOST_PLACE: Final = "lost_namespace"
"""Key of an execution's ``state``: the uid of a namespace that a person has declared gone for good."""


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
    """The secret that each launch's token is derived from (``launch_tokens.bearer_token``)."""
    status: str
    generation: int
    pid: int | None = None
    container_id: str = ""
    repository_path: str = ""
    store_id: str = ""
    """Name of the store of the repository's published objects; empty: it is named after the repository's path."""
    base_branch: str = ""
    workspace_path: str = ""
    worktree_path: str = ""
    worktree_branch: str = ""
    worktree_id: str = ""
    """The session that owns the worktree; empty: this session."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The runtime's own data, such as agentctl's process identity; ``launch`` is the nonce of its token."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``Executor.config`` of its executor."""

    @property
    def worktree_owner(self) -> str:
        """The id that the worktree's path, branch and recovery ref follow from."""
        return self.worktree_id or self.session_id


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one execution at one moment, as a runtime observed it."""

    observed: Observed
    reason: str = ""
    """Why it is dead or unknown, for example ``process_gone``, ``timeout``, ``other_host`` or ``refused``."""
    report: Mapping[str, Any] | None = None
    """The answer of ``GET /status`` (``protocol.Status``) if it is alive."""
    url: str = ""
    """The URL that answered; may differ from the row's after an interrupted launch."""
    pid: int | None = None
    workspace: WorkspaceState = WorkspaceState.PRESENT
    workspace_reason: str = ""
    """The precise reason why the workspace is gone, as shown to users."""
    leftovers: int = 0
    """How many marked processes of a dead agentctl still run."""
    seen_at: datetime | None = None
    state: Mapping[str, Any] | None = None
    """The runtime's own data if it is newer than the row's, else None."""

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
    """The execution's secret; a new agentctl gets a token that is derived from it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """``Executor.config``."""
    worktree_path: str = ""
    worktree_branch: str = ""
    """Empty at the first launch: the runtime derives path and branch from the ids."""
    worktree_id: str = ""
    """The session that owns the worktree; empty: this session."""
    store_id: str = ""
    """Name of the store of the repository's published objects; empty: it is named after the repository's path."""

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
    """Whether an earlier, interrupted launch was found instead of starting a new one."""
    container_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The runtime's own data; ``rebuilt`` tells users what a lost workspace was rebuilt from."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Something labelled as this deployment's that belongs to no row; it is removed only on request."""

    id: str
    """Its name, for example the container's."""
    execution_id: str
    """The execution that it was started for."""
    status: str
    is_helper: bool = False
    """Whether it is a short-lived container that a kill left behind; its execution's row may still exist."""
    owner_ids: tuple[str, ...] = ()
    """Sessions or executions that its name names, where labels alone could be changed."""


@dataclass(frozen=True, slots=True)
class LaunchWait:
    """What a launch that is under way waits for, such as for a cluster that has no room."""

    code: str
    """A stable code, such as ``pod_unschedulable``."""
    text: str
    """A sentence for users."""
    is_obstacle: bool = True
    """Whether something is missing; False for a step that always takes a moment."""


@dataclass(frozen=True, slots=True)
class LeftState:
    """What a dead agentctl left on disk; it is untrusted, as an agent may have written it."""

    resume_token: str | None = None
    """The agent's conversation id; None if there is none."""
    lines: Sequence[Mapping[str, Any]] = ()
    """Lines of its journal."""


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """A notice that the container or host of executions has ended or fallen silent."""

    session_id: str
    """Empty: events may have been missed, so all sessions of the source should be checked."""
    place_id: str = ""
    """What ended, for example a container's id; the session may run in another one by now."""
    ended: bool = True
    """False: it still runs, but a process in it was killed because memory ran out."""
    silent: bool = False
    """The source no longer answers, so streams from it may only seem to be alive; names no session."""
