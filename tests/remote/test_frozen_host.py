"""A frozen host closes no connection, but it is noticed, and nothing waits for it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from executors_app.wire.executions import ExitEvent, Launched, LaunchSpec, Observed
from tests.drills.deployment import ApiError, Session
from tests.drills.session_steps import wait_for_first_turn
from tests.executors.harness import observe_one, row_of
from tests.remote.deployment import RemoteDeployment
from tests.remote.harness import RemoteHarness
from tests.waiting import PATIENCE, eventually

LOADED = PATIENCE
"""Additional seconds for a busy machine."""


async def test_silent_host_is_reported_within_the_timeout(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched, settings: Any
) -> None:
    settings.KANDEV_SWEEP_TIMEOUT = 2.0
    facts = row_of(harness, spec, launched)
    events = harness.runtime.exit_events(harness.runtime.exit_event_source(facts))
    harness.machine.freeze()
    async with asyncio.timeout(2.0 + LOADED):
        assert await anext(events) == ExitEvent("", silent=True)

    async with asyncio.timeout(LOADED):
        seen = await observe_one(harness, facts, timeout=3600)
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "timeout"), "a host that is silent is not asked again"

    harness.machine.thaw()
    assert await anext(events) == ExitEvent("")
    assert (await observe_one(harness, facts)).observed is Observed.ALIVE
    await events.aclose()


@pytest.mark.any_database
def test_frozen_host_makes_only_its_sessions_unreachable(deployment: RemoteDeployment) -> None:
    deployment.serve()
    session = deployment.start_session("remember walrus")
    session.wait_for("WAITING_FOR_INPUT")
    wait_for_first_turn(session)
    limit = float(deployment.env["KANDEV_SWEEP_TIMEOUT"])

    deployment.machine.freeze()
    begun = time.monotonic()
    eventually(lambda: session.status()["error_code"] == "unreachable", describe="the host is unreachable")
    assert time.monotonic() - begun < limit + LOADED
    begun = time.monotonic()
    with pytest.raises(ApiError) as refused:
        deployment.api("GET", f"{session.path}/files/")
    assert (refused.value.status, "agentctl_unreachable" in str(refused.value.body)) == (503, True)
    assert time.monotonic() - begun < limit + LOADED

    session.prompt("what was the word?")
    reasons = {_reason(session)}

    def has_failed_start() -> bool:
        reasons.add(_reason(session))
        return _failed_starts(session) > 0

    eventually(has_failed_start, timeout=60, describe="a start is tried")
    assert reasons == {"unreachable"}

    deployment.machine.thaw()
    eventually(lambda: session.agent_text().count("walrus") >= 2, timeout=90, describe="the prompt is answered")
    assert session.status()["error_code"] == ""
    # The answer is in the log before its turn ends, and the prompt is done only when the turn has ended.
    eventually(
        lambda: [row["state"] for row in session.prompts()] == ["done", "done"],
        timeout=60,
        describe="both prompts are done",
    )


def _reason(session: Session) -> str:
    """Return why nothing happens in the session, as its page shows it."""
    status = session.status()
    return str((status["stillness"] or {}).get("reason", status["state"]))


def _failed_starts(session: Session) -> int:
    return sum(row["kind"] == "failed" for row in session.receipts())
