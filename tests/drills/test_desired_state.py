"""Sessions that should run come back by themselves, once and within limits; what cannot start is given up."""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from executors_app.agentctl.process.guard_process import command_line_of
from tests.drills.deployment import Deployment, Session
from tests.drills.session_steps import continue_prompts, wait_until_talking
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

CRASHES: dict[str, Any] = {
    "command": [sys.executable, "-c", "import sys; sys.stderr.write('no licence found\\n'); sys.exit(3)"]
}


def start_working_session(deployment: Deployment) -> Session:
    """Return a session in mid-turn that asks for no permission."""
    session = deployment.start_session("remember heron")
    session.wait_for("WAITING_FOR_INPUT")
    session.prompt("work 60")
    wait_until_talking(session)
    return session


@pytest.mark.parametrize("killed", ["agent", "agentctl"])
def test_kill_in_mid_turn_is_noticed_immediately_and_continued_once(deployment: Deployment, killed: str) -> None:
    deployment.env["KANDEV_RECONCILE_INTERVAL"] = "600"  # so that no periodic sweep interferes
    deployment.serve()
    session = start_working_session(deployment)
    pid = session.execution["pid"] if killed == "agentctl" else agent_pid(session)

    os.kill(pid, signal.SIGKILL)
    eventually(lambda: "session.run.interrupted" in session.names(), timeout=60, describe="the death is noticed")

    eventually(lambda: continue_prompts(session), timeout=60, describe="there is a continue prompt")
    (prompt,) = continue_prompts(session)
    eventually(
        lambda: continue_prompts(session)[0]["state"] in ("delivered", "done"),
        timeout=60,
        describe="the continue prompt is delivered",
    )
    assert [row["message_id"] for row in continue_prompts(session)] == [prompt["message_id"]]
    assert session.names().count("session.run.interrupted") == 1
    assert session.names().count("session.restart_ordered") == 1
    assert session.journal().count('"prompt_kind":"continue"') == 1


def agent_pid(session: Session) -> int:
    """Return the process id of its agent."""
    mine = [one for one in session.processes() if "demo_agent" in command_line_of(one.pid)]
    return mine[0].pid


def test_agent_that_dies_at_every_start_is_given_up_after_five_starts(deployment: Deployment) -> None:
    deployment.env |= {"KANDEV_RESTART_DELAY": "0.4", "KANDEV_BOOT_GRACE": "0", "KANDEV_RECONCILE_INTERVAL": "600"}
    deployment.serve()
    bad = deployment.start_session("do it", CRASHES)
    bad.wait_for("FAILED", timeout=90)

    failed = [row for row in bad.receipts() if row["kind"] == "failed"]
    assert [row["reason"] for row in failed] == ["agent_exited"] * 6, "the user's start and five automatic ones failed"
    at = [datetime.fromisoformat(str(row["created_at"])) for row in failed]
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(at)]
    for number, pause in enumerate(pauses):
        attempt = max(number, 1)
        assert pause >= 0.4 * 2 ** (attempt - 1) / 2, (number, pauses)
    assert bad.status()["restart_attempts"] == 5
    assert "Given up after 5 starts" in bad.status()["error_message"]

    items = deployment.rows("SELECT * FROM attention_items WHERE session_id = ?", bad.id.replace("-", ""))
    (item,) = [one for one in items if one["kind"] == "gave_up" and one["resolved_at"] is None]
    assert "no licence found" in item["detail"], "the item shows the end of the agent's log"

    good = deployment.start_session("remember heron")
    good.wait_for("WAITING_FOR_INPUT")
    assert len(bad.receipts()) == 6, "there is no further automatic start"
    deployment.api("POST", f"{bad.path}/resume/", {"mode": "auto"})
    eventually(lambda: len(bad.receipts()) >= 7, describe="the user's start is tried")
