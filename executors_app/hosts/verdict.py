"""What the word of a host says of one execution: alive, dead or unknown."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from executors_app.agentctl.places.launch_token import LAUNCH, token_of
from executors_app.domain import ExecutionFacts, Observation, Observed, WorkspaceState
from executors_app.errors import AgentctlForeign, ExecutorError
from executors_app.hosts.config import HostConfig


def judged(one: ExecutionFacts, listed: Mapping[str, Any] | None, host_id: str, config: HostConfig) -> Observation:
    """What the host's word says of one execution."""
    had = one.state.get("host")
    if listed is None:
        if had and had != host_id:
            return unknown("other_host")
        return _dead("process_gone", WorkspaceState.REBUILDABLE)
    launch = str(listed.get(LAUNCH) or "")
    digest = hashlib.sha256(token_of(one.auth_token, launch).encode()).hexdigest()
    if (listed["session_id"], listed["token_digest"]) != (one.session_id, digest):
        return unknown("foreign")
    match Observed(listed["observed"]):
        case Observed.ALIVE:
            known = {name: value for name, value in one.state.items() if name != LAUNCH}
            state = {**known, "host": host_id, **({LAUNCH: launch} if launch else {})}
            url = config.url_of(one.id)
            return Observation(Observed.ALIVE, report=listed["report"], url=url, seen_at=datetime.now(UTC), state=state)
        case Observed.DEAD:
            workspace = WorkspaceState(listed["workspace"])
            return _dead(str(listed["reason"]), workspace, str(listed["workspace_reason"]), int(listed["leftovers"]))
    return unknown(str(listed["reason"]))


def unknown(reason: str) -> Observation:
    """Neither alive nor proven dead."""
    return Observation(Observed.UNKNOWN, reason, seen_at=datetime.now(UTC))


def _dead(reason: str, workspace: WorkspaceState, why: str = "", leftovers: int = 0) -> Observation:
    return Observation(
        Observed.DEAD,
        reason,
        workspace=workspace,
        workspace_reason=why,
        leftovers=leftovers,
        seen_at=datetime.now(UTC),
    )


def why(error: Exception) -> str:
    """The reason that a host's bad answer stands for."""
    if not isinstance(error, ExecutorError):
        return "foreign"
    reason = str(error.details.get("reason", error.code))
    return "foreign" if isinstance(error, AgentctlForeign) and reason != "certificate" else reason
