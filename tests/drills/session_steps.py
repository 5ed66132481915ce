"""Steps that drills of every runtime share: start a session, wait for its turns, and check them."""

from __future__ import annotations

from typing import Any

from tests.drills.deployment import Deployment, Session
from tests.waiting import eventually


def wait_until_talking(session: Session) -> None:
    """Wait until the agent is in mid-turn and its text is in the log."""
    eventually(lambda: "tick" in session.agent_text(), timeout=60, describe="the agent writes")


def wait_for_first_turn(session: Session) -> None:
    """Wait until the first turn is over."""
    eventually(lambda: "session.run.completed" in session.names(), timeout=60, describe="the first turn has completed")


def start_idle_session(deployment: Deployment) -> Session:
    """Return a session whose first turn is over, with all its events and receipts written."""
    session = deployment.start_session("remember walrus")
    wait_for_first_turn(session)
    session.wait_for("WAITING_FOR_INPUT")
    eventually(lambda: "session.attention" in session.names(), describe="the session needs attention")
    return session


def check_only_turn(session: Session) -> None:
    """Wait until the only turn has ended; the log must have all of it, once and byte for byte."""
    wait_for_first_turn(session)
    assert session.agent_text() == session.agent_log()
    names = session.names()
    assert [names.count(f"session.run.{end}") for end in ("started", "completed", "interrupted")] == [1, 1, 0]
    assert [row["state"] for row in session.prompts()] == ["done"]
    assert session.journal().count('"kind":"agent.started"') == 1


def continue_prompts(session: Session) -> list[dict[str, Any]]:
    """Return the prompts with which Kandev continued interrupted turns."""
    return [row for row in session.prompts() if row["kind"] == "continue"]
