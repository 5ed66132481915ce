"""What follows for an execution from the report of its host."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from executors_app.runtimes.remote.config import HostConfig
from executors_app.wire.errors import AgentctlForeign, ExecutorError
from executors_app.wire.executions import ExecutionFacts, Observation, Observed, WorkspaceState
from executors_app.wire.launch_tokens import LAUNCH_KEY, derive_launch_token


def judge_instance(
    execution: ExecutionFacts, listed: Mapping[str, Any] | None, host_id: str, config: HostConfig
) -> Observation:
    """Return the observation of one execution that follows from the host's report."""
    recorded_host = execution.state.get("host")
    if listed is None:
        if recorded_host and recorded_host != host_id:
            return Observation.unknown("other_host")
        return Observation.dead("process_gone", WorkspaceState.REBUILDABLE)
    launch = str(listed.get(LAUNCH_KEY) or "")
    digest = hashlib.sha256(derive_launch_token(execution.auth_token, launch).encode()).hexdigest()
    if (listed["session_id"], listed["token_digest"]) != (execution.session_id, digest):
        return Observation.unknown("foreign")
    match Observed(listed["observed"]):
        case Observed.ALIVE:
            known = {name: value for name, value in execution.state.items() if name != LAUNCH_KEY}
            state = {**known, "host": host_id}
            if launch:
                state[LAUNCH_KEY] = launch
            url = config.url_of(execution.id)
            return Observation(Observed.ALIVE, report=listed["report"], url=url, seen_at=datetime.now(UTC), state=state)
        case Observed.DEAD:
            workspace = WorkspaceState(listed["workspace"])
            return Observation.dead(
                str(listed["reason"]), workspace, str(listed["workspace_reason"]), int(listed["leftovers"])
            )
    return Observation.unknown(str(listed["reason"]))


def error_reason(error: Exception) -> str:
    """Return the reason code of an error from a host."""
    if not isinstance(error, ExecutorError):
        return "foreign"
    reason = str(error.details.get("reason", error.code))
    if isinstance(error, AgentctlForeign) and reason != "certificate":
        return "foreign"
    return reason
