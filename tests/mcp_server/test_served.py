"""A running server with the SDK's client: an agent delegates work while the web process is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.deployment import Deployment
from tests.drills.process_groups import descendants
from tests.mcp_server.clients import call, connected
from tests.waiting import eventually

pytestmark = pytest.mark.any_database


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    made.prepare()
    yield made
    made.close()


async def test_client_lists_prompts_waits_and_reads(deployment: Deployment) -> None:
    deployment.serve()
    session = deployment.start_session("remember green")
    key, url = deployment.seeded["token"], f"{deployment.url}/mcp"
    of = {"session_id": session.id}
    async with connected(key, url=url) as client:
        assert [row["session_id"] for row in (await call(client, "list_sessions"))["sessions"]] == [session.id]
        first = await call(client, "wait_for_turn", timeout_seconds=120, **of)
        assert (first["outcome"], first["answer"]) == ("ended", "I will remember green.\n")
        await call(client, "prompt_session", text="ask", message_id="ask", **of)
        asking = await call(client, "wait_for_turn", message_id="ask", timeout_seconds=120, **of)
        assert asking["outcome"] == "needs_answer"
        (permission,) = asking["permissions"]
    _kill_web(deployment)
    async with connected(key, "legacy", url) as client:
        option = permission["options"][0]["option_id"]
        await call(client, "answer_permission", permission_id=permission["permission_id"], option_id=option, **of)
        again = await call(client, "prompt_session", text="ask", message_id="ask", **of)
        assert again["created"] is False
        turn = await call(client, "wait_for_turn", message_id="ask", timeout_seconds=120, **of)
        assert (turn["outcome"], turn["answer"]) == ("ended", f"The answer was {option}.\n")
        read = await call(client, "read_conversation", after=turn["started_at_seq"], **of)
        assert (read["messages"][0]["role"], read["messages"][0]["text"]) == ("user", "ask")


def _kill_web(deployment: Deployment) -> None:
    """Kill the web process; ``serve`` starts another."""
    server = deployment.server
    assert server is not None
    (web,) = (pid for pid in descendants(server.pid) if Path(f"/proc/{pid}/comm").read_text() == "kandev-web\n")
    os.kill(web, signal.SIGKILL)
    eventually(lambda: web not in descendants(server.pid), timeout=60, describe="the web process has ended")
    eventually(deployment.is_ready, timeout=60)
