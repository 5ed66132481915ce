"""A changed setting survives a kill of the process that applies it, and is applied again to the next agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield one prepared deployment for all crash points; each test starts it again."""
    made = Deployment(tmp_path_factory.mktemp("settings"))
    made.prepare()
    yield made
    made.close()


def mode_of(session: Session) -> dict[str, Any]:
    body = session.deployment.api("GET", f"{session.path}/settings/")
    return next((each for each in body["settings"] if each["id"] == "mode"), {})


@pytest.mark.parametrize("point", ["supervisor.setting_sent", "agentctl.setting_journaled"])
def test_change_reaches_the_agent_once_across_a_kill(shared: Deployment, point: str) -> None:
    reached = shared.home / f"reached-{point}"
    reached.mkdir()
    shared.serve({"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(reached)})
    try:
        session = shared.start_session("remember walrus")
        eventually(
            lambda: "session.run.completed" in session.names(), timeout=90, describe="the first turn has completed"
        )
        assert mode_of(session)["value"] == "act"
        shared.api("POST", f"{session.path}/settings/", {"setting": "mode", "value": "plan"})
        # agentctl writes a change to its agent first, and to its journal when the agent has answered. A prompt that
        # follows at once may be with the agent by then, and is held when that dies: here it follows the death.
        if point == "supervisor.setting_sent":
            session.prompt("write fence.txt planks")
        eventually((reached / point).exists, timeout=90, describe=f"the process dies at {point}")
        if point == "agentctl.setting_journaled":
            session.prompt("write fence.txt planks")
        eventually(lambda: session.prompts()[1]["state"] == "done", timeout=120, describe="the prompt is answered")

        assert "I would write fence.txt" in session.agent_text()
        assert mode_of(session)["change"]["state"] == "applied"
        assert session.names().count("session.setting.applied") == 1

        session.kill_everything()
        eventually(lambda: len(session.receipts()) > 1, timeout=120, describe="the agent was started again")
        session.prompt("write gate.txt planks")
        eventually(lambda: session.prompts()[2]["state"] == "done", timeout=90, describe="the new agent answers")
        assert "I would write gate.txt" in session.agent_text()
    finally:
        shared.kill_server()
