"""An agentctl that answers requests but never opens its stream in time."""

from __future__ import annotations

import asyncio

import pytest

from executors_app.wire.errors import AgentctlUnreachable
from executors_app.wire.executions import Launched, LaunchSpec
from sessions_app.models import Intent
from sessions_app.starts import execution
from sessions_app.supervisor import execution_registry as cores
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import RecordingRuntime, with_registry
from tests.supervisor.rows import fresh, running_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _short_attach_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "ATTACH_TIMEOUT", 0.5)


def streams() -> list[str]:
    """Return the names of the existing stream tasks."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("stream")]


def test_stream_timeout_raises_unreachable_and_leaves_no_stream() -> None:
    session = running_session(execution={"owner": "", "lease_expires_at": None})

    async def take_over(registry: ExecutionRegistry) -> list[str]:
        with pytest.raises(AgentctlUnreachable):
            await registry.open_stream(session.id)
        return streams()

    with recording_agentctl(session) as agentctl:
        agentctl.is_slow = True
        assert with_registry(take_over) == []


def test_cancelled_opening_leaves_no_stream() -> None:
    session = running_session(execution={"owner": "", "lease_expires_at": None})

    async def take_over(registry: ExecutionRegistry) -> list[str]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(registry.open_stream(session.id), 0.3)
        return streams()

    with recording_agentctl(session) as agentctl:
        agentctl.is_slow = True
        assert with_registry(take_over) == []


def test_slow_stream_fails_the_start_as_unreachable(runtime: RecordingRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    session = running_session(
        runtime="recording", execution={"owner": "", "lease_expires_at": None, "status": "stopped"}, state="ERROR"
    )
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})

    with recording_agentctl(session) as agentctl:
        agentctl.is_slow = True

        async def launch(spec: LaunchSpec) -> Launched:
            return Launched(
                url=agentctl.url,
                pid=None,
                boot_id="boot",
                workspace_path="/",
                worktree_id="w",
                worktree_path="/",
                worktree_branch="b",
            )

        monkeypatch.setattr(runtime, "launch", launch)
        with_registry(lambda registry: execution.execute_start(registry, session.id, intent.id))
    failed = fresh(session)
    assert (failed.state, failed.error_code) == ("ERROR", "agentctl_unreachable")
