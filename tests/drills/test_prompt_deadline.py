"""A prompt wakes a session that is not running, survives the death of its execution, and reports a missed deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from executors_app.agentctl.process.guard_process import command_line_of
from executors_app.machine.process import identity
from tests.drills.deployment import ApiError, Deployment, Session
from tests.drills.kandev_processes import served_by
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield one deployment that gives a start 15 seconds."""
    made = Deployment(tmp_path_factory.mktemp("deadline"))
    made.env |= {"KANDEV_START_TIMEOUT": "15", "KANDEV_BOOT_GRACE": "0"}
    made.prepare()
    try:
        with served_by(made, webs=1):
            yield made
    finally:
        made.close()


def start_session_with_turn(deployment: Deployment) -> Session:
    """Return a session whose first turn is over."""
    session = deployment.start_session("remember walrus")
    eventually(lambda: session.prompts()[0]["state"] == "done", timeout=60, describe="the first prompt is done")
    return session


def kill_all(session: Session) -> None:
    """Kill agentctl, guard and agent at once."""
    session.kill_everything()


def kill_agent(session: Session) -> None:
    """Kill the agent alone and wait for its end; its agentctl lives."""
    agents = [one for one in session.processes() if "demo_agent" in command_line_of(one.pid)]
    assert agents
    assert not identity.kill_all(agents[-1:], 10)


@pytest.mark.parametrize("kill", [kill_all, kill_agent])
def test_prompt_whose_execution_dies_is_delivered_once_to_the_next_execution(
    shared: Deployment, kill: Callable[[Session], None]
) -> None:
    """A prompt that was being delivered when its execution died is held, and a user sends it again."""
    session = start_session_with_turn(shared)
    kill(session)
    session.prompt("what was the word?")
    eventually(
        lambda: session.prompts()[1]["state"] in ("done", "held"), timeout=60, describe="the second prompt is settled"
    )
    first = session.prompts()[1]
    if first["state"] == "held":
        shared.api("POST", f"{session.path}/prompts/{first['message_id']}/resend/", {})
    eventually(lambda: session.prompts()[-1]["state"] == "done", timeout=60, describe="the last prompt is done")
    assert session.agent_text().count("The word was walrus.") == 1


def test_prompt_without_an_agent_in_time_is_reported_and_can_be_withdrawn(shared: Deployment) -> None:
    command = ["sh", "-c", "sleep 3600"]
    session = shared.start_session("remember walrus", {"command": command})
    eventually(lambda: "session.prompt.overdue" in session.names(), timeout=60, describe="the overdue prompt is logged")
    payloads = [one["payload"] for one in session.events() if one["name"] == "session.prompt.overdue"]
    assert len(payloads) == 1
    status = session.status()
    assert (status["overdue_prompts"], status["queued_prompts"], status["needs_attention"]) == (1, 1, True)
    eventually(
        lambda: "start_timeout" in [row["reason"] for row in session.receipts()],
        timeout=60,
        describe="the start has timed out",
    )
    [row] = session.prompts()
    assert row["state"] == "queued"
    shared.api("DELETE", f"{session.path}/prompts/{row['message_id']}/")
    assert session.prompts()[0]["state"] == "withdrawn"
    with pytest.raises(ApiError):
        shared.api("DELETE", f"{session.path}/prompts/{row['message_id']}/")
    shared.api("POST", f"{session.path}/stop/", {})
