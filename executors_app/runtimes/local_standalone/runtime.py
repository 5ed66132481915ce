"""Runtime ``local_standalone``: a worktree and a detached agentctl on the control plane's own machine.

Agents share the machine with the control plane: *trusted agents only*. The implementation is in
``machine/local_machine.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.machine.listeners import AgentctlListener
from executors_app.machine.local_machine import LocalMachine
from executors_app.machine.process import execution_processes, spawning
from executors_app.repositories.workspace_store import LocalStateMixin, execution_storage
from executors_app.wire import launch_tokens
from executors_app.wire.executions import ExecutionFacts, Launched, LaunchSpec, Observation, WorkspaceState


class LocalStandalone(LocalStateMixin):
    """The runtime; keeps no state in memory."""

    name = "local_standalone"
    isolated = False
    shares_memory = True
    shares_worktrees = True
    bound_to_host = True

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError for any setting: there are none."""
        if config:
            raise ValueError(f"{self.name} has no settings, but got {', '.join(sorted(map(str, config)))}.")

    async def check_availability(self, config: Mapping[str, Any]) -> None:
        """Return at once: this machine is always available."""

    async def launch(self, spec: LaunchSpec) -> Launched:
        """Start agentctl, which makes the worktree, or find both; the state identifies agentctl's process."""
        launched = await _here().launch(spec)
        if launched.found:
            listener = AgentctlListener(launched.url, execution_processes.recorded_process(launched.state))
            token = launch_tokens.bearer_token(spec.auth_token, launched.state)
            await AgentctlClient(listener, token, spec.execution_id).ensure_workspace()
        return launched

    def can_manage(self, execution: ExecutionFacts) -> bool:
        """Whether it runs in this machine's current boot and pid namespace, or is from before its last boot."""
        return _here().can_manage(execution)

    async def observe(
        self, executions: Sequence[ExecutionFacts], *, timeout: float, concurrency: int
    ) -> dict[str, Observation]:
        """Poll all agentctls at once; inspect processes only for those without a valid answer."""
        return await _here().observe(executions, timeout=timeout, concurrency=concurrency)

    def workspace_state(self, execution: ExecutionFacts) -> tuple[WorkspaceState, str]:
        """Inspect the worktree and, if that is missing, the repository."""
        return execution_storage().workspace_state(execution)

    async def end(self, execution: ExecutionFacts) -> bool:
        """End agentctl and its leftover processes (TERM, then KILL), but only processes proven to be its own."""
        return await _here().end(execution)

    async def end_leftovers(self, execution: ExecutionFacts) -> int:
        """KILL processes that outlived agentctl; does nothing while this execution's agentctl lives."""
        return await _here().end_leftovers(execution)


RUNTIME: Final = LocalStandalone()


def _here() -> LocalMachine:
    return LocalMachine(execution_storage(), _crash_point())


def _crash_point() -> dict[str, str]:
    """Return the environment for agentctl's own crash points, which tests set."""
    points = str(getattr(settings, "KANDEV_CRASH_AT", "")).split(",")
    its_own = ",".join(point for point in points if point.startswith("agentctl."))
    if not its_own:
        return {}
    return {
        spawning.CRASH_AT_VARIABLE: its_own,
        spawning.CRASH_DIR_VARIABLE: str(settings.KANDEV_CRASH_DIR),  # type: ignore[misc,unused-ignore]
    }
