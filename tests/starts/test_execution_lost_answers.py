"""A start whose response was lost: the state of its agent decides."""

from __future__ import annotations

from typing import cast

import pytest

from executors_app.wire.errors import AgentctlRefused
from sessions_app.models import Intent
from sessions_app.starts import claims, execution
from sessions_app.supervisor.execution_registry import ExecutionRegistry
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.recording_runtime import with_registry
from tests.supervisor.rows import fresh, running_session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("agent", "state", "receipt"),
    [
        ("idle", "WAITING_FOR_INPUT", ("reattached", "answer_lost")),
        ("starting", "ERROR", ("failed", "already_running")),
    ],
)
def test_agent_of_a_start_with_a_lost_answer_counts_when_ready(
    agent: str, state: str, receipt: tuple[str, str]
) -> None:
    session = running_session(execution={"owner": "", "lease_expires_at": None}, launch_id="earlier")
    intent = Intent.objects.create(session=session, kind="start", payload={"mode": "auto"})

    async def refused(registry: ExecutionRegistry) -> None:
        stream = await registry.open_stream(session.id)
        assert stream is not None
        plan = await registry.database(
            claims.claim_start, session.id, intent.id, registry.boot_id, running_launch_id=None
        )
        error = AgentctlRefused("another launch is running", status=409, refusal="already_running")
        await execution._handle_refusal(registry, stream, cast(claims.StartClaim, plan), error)

    with recording_agentctl(session, agent=agent):
        with_registry(refused)
    written = session.receipts.exclude(launch_id=None).get()
    assert (written.kind, written.reason) == receipt
    assert fresh(session).state == state
