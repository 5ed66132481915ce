"""The next prompt describes interrupted work to the agent: from the log, from git, and processes that ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drills.deployment import ROOT, Deployment, Session
from tests.drills.session_steps import wait_for_first_turn
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


def _forking() -> dict[str, Any]:
    """Return an agent profile of the demo agent that leaves processes running in the background."""
    command = [sys.executable, "-m", "tests.support.faulty_agent", "--behaviour", "forks"]
    return {"command": command, "env": {"PYTHONPATH": str(ROOT)}}


def _block_in_tool_call(session: Session) -> None:
    """Leave the agent in the middle of a tool call: it writes into a pipe that no process reads."""
    wait_for_first_turn(session)
    os.mkfifo(Path(session.row["worktree_path"]) / "pipe")
    session.prompt("write pipe hello")
    eventually(lambda: '"tool.call"' in session.journal(), describe="the agent is in its tool call")


def _change_files(session: Session) -> None:
    worktree = Path(session.row["worktree_path"])
    (worktree / "README.md").write_text("# Half done\n")
    (worktree / "new.py").write_text("half = True\n")


def _context_text(session: Session, count: int) -> str:
    """Return the text that the agent got with its ``count``-th prompt, according to the journal."""

    def given() -> list[str]:
        lines = [json.loads(line) for line in session.journal().splitlines() if '"prompt.accepted"' in line]
        return [line["text"] for line in lines]

    eventually(lambda: len(given()) >= count, timeout=60, describe=f"{count} prompts were delivered")
    return given()[count - 1]


def _check(text: str) -> None:
    for line in ("> write pipe hello", "- Write pipe", "- modified README.md", "- added new.py", "- sleep 3600"):
        assert line in text


@pytest.mark.parametrize("killed", ["agent", "everything"])
def test_only_the_next_prompt_describes_interrupted_work(deployment: Deployment, killed: str) -> None:
    deployment.env["KANDEV_CONTINUE"] = "off"
    deployment.serve()
    session = deployment.start_session("remember heron", _forking())
    _block_in_tool_call(session)
    _change_files(session)
    if killed == "everything":
        os.kill(session.execution["pid"], signal.SIGKILL)  # agentctl, whose guard ends the agent
    else:
        os.kill(_agent_pid(session), signal.SIGKILL)
    eventually(lambda: len(session.receipts()) >= 2, timeout=60, describe="the agent was started again")
    session.prompt("and now?")
    text = _context_text(session, 3)
    _check(text)
    assert "Verify what is there before you repeat" in text
    assert text.endswith("\n\nand now?")
    session.wait_for("WAITING_FOR_INPUT")
    session.prompt("once more")
    assert _context_text(session, 4) == "once more"
    assert [row["text"] for row in session.prompts()][-2:] == ["and now?", "once more"]


def test_continue_prompt_describes_interrupted_work(deployment: Deployment) -> None:
    deployment.env["KANDEV_CONTINUE"] = "on"
    deployment.serve()
    session = deployment.start_session("remember heron", _forking())
    _block_in_tool_call(session)
    _change_files(session)
    # Asked to continue, the agent writes the file again: this time nothing must block it.
    (Path(session.row["worktree_path"]) / "pipe").unlink()
    os.kill(_agent_pid(session), signal.SIGKILL)
    text = _context_text(session, 3)
    _check(text)
    assert "verify before repeating" in text
    row = session.prompts()[-1]
    assert (row["kind"], row["text"]) == ("continue", text)
    session.wait_for("WAITING_FOR_INPUT")
    session.prompt("and now?")
    assert _context_text(session, 4) == "and now?"


def _agent_pid(session: Session) -> int:
    started = [line for line in session.journal().splitlines() if '"agent.started"' in line]
    return int(json.loads(started[-1])["pid"])
