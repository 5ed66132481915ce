"""A prompt for the running turn reaches the agent at most once, wherever the process that hands it over is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

STATES_AFTER: Final = {
    "agentctl.steer_journaled": {"held"},
    # The conversation of the next agent shows the text.
    "agentctl.steer_handed_over": {"interrupted"},
    # The line may not be on disk when agentctl dies.
    "agentctl.steer_settled": {"interrupted", "done"},
    "supervisor.steer_sending": {"done"},
    "supervisor.steer_sent": {"done"},
}
"""The states that the prompt may have after a process died at each crash point."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Yield one prepared deployment for all crash points; each test starts it again."""
    made = Deployment(tmp_path_factory.mktemp("steering"))
    made.prepare()
    yield made
    made.close()


def begin_long_turn(shared: Deployment, seconds: int) -> Session:
    session = shared.start_session(f"work {seconds}")
    eventually(lambda: "tick 1" in session.agent_text(), timeout=90, describe="the agent works")
    assert session.status()["can_steer"]
    return session


def send_now(session: Session, text: str = "remember walrus") -> None:
    body = {"message_id": "steered", "text": text, "deliver": "now"}
    session.deployment.api("POST", f"{session.path}/prompt/", body)


def state_of(session: Session) -> str:
    return str(session.prompts()[1]["state"])


def times_received(session: Session) -> int:
    texts = (Path(path).read_text() for path in session.agent_home.glob("*.jsonl"))
    return "".join(texts).count('"user", "text": "remember walrus')


def test_agent_takes_a_prompt_into_its_turn(shared: Deployment) -> None:
    shared.serve()
    try:
        session = begin_long_turn(shared, 20)
        send_now(session)
        eventually(lambda: state_of(session) == "done", timeout=90, describe="the turn ends")
        assert "I will remember walrus." in session.agent_text()
        assert times_received(session) == 1
        assert session.names().count("session.run.started") == 1
    finally:
        shared.kill_server()


@pytest.mark.parametrize("point", STATES_AFTER)
def test_killed_process_hands_no_prompt_over_twice(shared: Deployment, point: str) -> None:
    reached = shared.home / f"reached-{point}"
    reached.mkdir()
    shared.serve({"KANDEV_CRASH_AT": point, "KANDEV_CRASH_DIR": str(reached), "KANDEV_CONTINUE": "off"})
    try:
        session = begin_long_turn(shared, 20)
        send_now(session)
        eventually((reached / point).exists, timeout=60, describe=f"a process dies at {point}")
        eventually(lambda: state_of(session) in ("done", "held", "interrupted"), timeout=120, describe="it is settled")
        eventually(lambda: session.status()["is_agent_running"], timeout=90, describe="the agent runs")
        session.prompt("work 1")
        eventually(lambda: session.prompts()[2]["state"] == "done", timeout=90, describe="the next prompt is done")
        assert state_of(session) in STATES_AFTER[point]
        assert times_received(session) <= 1
        if point != "agentctl.steer_journaled":
            assert times_received(session) == 1
    finally:
        shared.kill_server()
