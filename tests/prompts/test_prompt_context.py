"""Facts about an interrupted turn that only the workspace has are read once, before the next start."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.starts import execution
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import change, fresh, running_session

pytestmark = pytest.mark.django_db(transaction=True)

CUT = {"message_id": "p1", "run_id": "r1", "tools": ["make test"], "since": "a" * 40}
LEFT = {"files": ["modified a.py"], "processes": ["npm run dev"]}


def record_interrupted_work(left: dict[str, list[str]] | None, known: dict[str, Any], times: int = 1) -> TaskSession:
    """Return the session after that many reads from an agentctl that reports ``left``."""
    session = running_session(execution={"owner": "", "lease_expires_at": None})
    change(session, metadata={prompts.INTERRUPTION_KEY: known})

    async def record(registry: ExecutionRegistry) -> None:
        stream = await registry.open_stream(session.id)
        assert stream is not None
        for _ in range(times):
            since = await registry.database(lambda: prompts.snapshot_to_compare(fresh(session)))
            await execution.record_interrupted_work(registry, stream, since)

    with recording_agentctl(session) as agentctl:
        agentctl.left = left
        with_registry(record)
    return fresh(session)


@pytest.mark.parametrize(
    ("left", "changed", "processes"),
    [
        (LEFT, ["modified a.py"], ["npm run dev"]),
        (None, [], []),
        ({}, [], []),
        ({"files": [f"added {number}" for number in range(500)]}, 200, []),
    ],
)
def test_workspace_facts_are_stored_as_far_as_they_are_reported(left: Any, changed: Any, processes: list[str]) -> None:
    known = prompts.unfinished_of(record_interrupted_work(left, CUT))
    assert known is not None
    kept = known["changed"]
    assert (len(kept) if isinstance(changed, int) else kept) == changed
    assert known["processes"] == processes
    assert known["tools"] == ["make test"]


@pytest.mark.parametrize("known", [{}, {**CUT, "changed": ["added b.py"], "processes": []}])
def test_workspace_is_not_read_twice_or_without_need(known: dict[str, Any]) -> None:
    assert (prompts.unfinished_of(record_interrupted_work(LEFT, known)) or {}) == known


def test_without_a_snapshot_only_processes_are_reported() -> None:
    known = prompts.unfinished_of(record_interrupted_work(LEFT, {**CUT, "since": ""}, times=2))
    assert known is not None
    assert (known["changed"], known["processes"]) == ([], ["npm run dev"])
