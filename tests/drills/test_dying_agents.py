"""An agent that dies in each of its turns is restarted with growing delays, then given up with its cause."""

from __future__ import annotations

import sys
from datetime import datetime

import pytest

from tests.drills.deployment import ROOT, Deployment
from tests.waiting import eventually

pytestmark = pytest.mark.any_database
DYING = {
    "command": [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "dies_in_turn"],
    "env": {"PYTHONPATH": str(ROOT)},
}
FIRST = 0.4
"""Seconds of the first restart delay in this drill."""


def times(deployment: Deployment, name: str) -> list[datetime]:
    """Return when each event of that name was recorded, oldest first."""
    rows = deployment.rows("SELECT at FROM session_events WHERE name = ? ORDER BY seq", name)
    return [datetime.fromisoformat(str(row["at"])) for row in rows]


def test_agent_that_dies_in_each_turn_is_given_up_after_backoff(deployment: Deployment) -> None:
    deployment.env |= {"KANDEV_RESTART_DELAY": str(FIRST), "KANDEV_CONTINUE": "on"}
    deployment.serve()
    session = deployment.start_session("hello", DYING)
    session.wait_for("FAILED", timeout=120)

    deaths, begun = (times(deployment, name) for name in ("session.agent_exited", "session.run.started"))
    assert session.names().count("session.restart_ordered") == 5
    assert len(deaths) == 6, "the user's start and five automatic ones died"
    waits = [(after - before).total_seconds() for before, after in zip(deaths, begun[1:], strict=False)]
    for number, wait in enumerate(waits[1:]):
        assert wait >= FIRST * 2**number / 2, waits
    assert session.status()["error_code"] == "agent_died"
    assert session.status()["error_message"].startswith("The agent died in its turn 6 times in a row (signal 9,")
    continues = [row for row in session.prompts() if row["kind"] == "continue"]
    assert len(continues) == 5
    items = deployment.rows("SELECT what, why FROM attention_items WHERE kind = 'gave_up'")
    assert [item["what"] for item in items] == ["The agent kept crashing, and is not restarted automatically"]
    eventually(lambda: session.status()["is_resumable"], describe="the session can be resumed")
