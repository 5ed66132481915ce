"""What happens to a prompt whose agentctl is killed during delivery; ``tests/chaos`` kills everywhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.deployment import Deployment
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

STATE_AFTER = {
    "agentctl.prompt_journaled": "held",
    "agentctl.prompt_accepted": "held",
    "agentctl.prompt_delivered": "interrupted",
    "agentctl.turn_ended": "done",
}
"""The state of the first prompt after agentctl died at each crash point."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield one prepared deployment for all crash points; each test starts it again."""
    made = Deployment(tmp_path_factory.mktemp("crash"))
    made.prepare()
    yield made
    made.close()


@pytest.mark.parametrize("point", STATE_AFTER)
def test_agentctl_killed_at_a_crash_point_delivers_no_prompt_twice(shared: Deployment, point: str) -> None:
    reached = shared.home / f"reached-{point}"
    reached.mkdir()
    shared.serve({"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(reached), "KANDEV_CONTINUE": "off"})
    try:
        session = shared.start_session("remember walrus\nwork 1")
        eventually((reached / point).exists, timeout=60, describe=f"agentctl dies at {point}")
        settled = ("done", "interrupted", "held")
        eventually(lambda: session.prompts()[0]["state"] in settled, timeout=90, describe="the prompt is settled")
        session.wait_for("WAITING_FOR_INPUT")
        eventually(lambda: session.status()["is_agent_running"], timeout=90, describe="the agent runs again")
        session.prompt("work 1")
        eventually(lambda: session.prompts()[1]["state"] == "done", timeout=60, describe="the second prompt is done")

        text = "".join(path.read_text() for path in session.agent_home.glob("*.jsonl"))
        assert text.count('"user", "text": "remember walrus') <= 1
        assert session.prompts()[0]["state"] == STATE_AFTER[point]
        assert session.names().count("session.run.interrupted") <= 1
    finally:
        shared.kill_server()
