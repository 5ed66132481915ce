"""One native resume with real parts: rows of a session, agentctl with its driver on a socket, a scripted agent."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from executors_app.agentctl.daemon import build_app, listen_tcp, load_drivers
from executors_app.agentctl.http.event_streams import EventStreams
from executors_app.agentctl.sidecar import Execution, Sidecar
from executors_app.agentctl_client.client import AgentctlClient
from executors_app.wire.errors import AgentctlRefused
from executors_app.wire.executions import Launched
from sessions_app.models import Intent, Prompt, TaskSession
from sessions_app.starts import agent_start, claims
from sessions_app.starts.outcomes import start_failure_from, write_start_failure
from tests.agents.scripts import SESSION, Script
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import MINE, change, execution_of, fresh, running_session
from tests.waiting import PATIENCE, eventually_async, pass_time

LAST_REQUEST = "write the parser"
TOKEN = SESSION
_BEARER = "a-token-of-some-length"
_ROOT = Path(__file__).parents[2]
_AGENT = Path(__file__).parents[1] / "agents" / "scripted_agent.py"


class Resume:
    """A session with one completed turn whose agent has exited; ``run`` resumes it with another agent."""

    def __init__(self, home: Path, agent_type: str):
        session, journal = running_session(execution={"resume_token": TOKEN, "workspace_path": str(home)}), Journal()
        Prompt.objects.create(session=session, message_id="p1", text=LAST_REQUEST, state="sending")
        ingest(session, [*journal.turn_begins("p1"), *journal.says("Done."), journal.completes("p1"), journal.exits()])
        self.home, self.session = home, fresh(session)
        change(session.agent_profile, agent_type=agent_type)

    def run(self, script: Script | str | None, mode: str = "auto", hangs_in: str = "") -> TaskSession:
        """Resume and return the session; a string names a test agent's behaviour, None a missing program.

        If the agent does not answer the method ``hangs_in``, the limit of the start passes once it has read it.
        """
        change(self.session.agent_profile, command=self._command(script), env={"PYTHONPATH": str(_ROOT)})
        intent = Intent.objects.create(session=self.session, kind="start", payload={"mode": mode})
        plan = claims.claim_start(self.session.id, intent.id, MINE.owner, running_launch_id=None)
        assert plan is not None
        claims.write_launch(plan, _launched(self.home))
        order = agent_start.prepare_agent_start(plan, plan.lease, found="")
        assert order is not None
        try:
            body = {**order.body, "timeout": PATIENCE, "load_timeout": PATIENCE}
            answer = asyncio.run(self._ask(body, hangs_in))
        except AgentctlRefused as error:
            failure = start_failure_from(error, executor_failed=False)
            write_start_failure(self.session.id, plan.intent_id, plan.lease, failure)
        else:
            agent_start.write_agent_started(
                plan, plan.lease, order, answer, agent_start.load_conversation_facts(plan.session_id)
            )
        self.session = fresh(self.session)
        return self.session

    def _command(self, script: Script | str | None) -> list[str]:
        if isinstance(script, str):
            agent = [sys.executable, "-m", "tests.support.faulty_agent"]
            return [*agent, "--behaviour", script, "--home", str(self.home / "agent")]
        path = self.home / "script.json"
        path.write_text(json.dumps(script or {}))
        return [sys.executable, str(_AGENT), str(path)] if script is not None else ["/no/such/agent"]

    async def _ask(self, body: Mapping[str, Any], hangs_in: str) -> dict[str, Any]:
        asking = asyncio.create_task(_post(self.home, body))
        if hangs_in:
            await eventually_async(lambda: hangs_in in self.methods())
            pass_time(PATIENCE)
        return await asking

    def methods(self) -> list[str]:
        """Return the methods called on the agent, in order."""
        read = self.home / "script.json.read"
        lines = read.read_bytes().splitlines() if read.exists() else []
        return [str(json.loads(line).get("method")) for line in lines]

    def token_outcome(self) -> str:
        """Return what happened to the resume token: *kept*, set *aside*, or *lost*."""
        row = execution_of(self.session)
        if row.resume_token == TOKEN:
            return "kept"
        return "aside" if row.rejected_resume_token == TOKEN and not row.resume_token else "lost"


def _launched(home: Path) -> Launched:
    return Launched(
        url="http://127.0.0.1:9",
        pid=1,
        boot_id="boot",
        workspace_path=str(home),
        worktree_id="",
        worktree_path=str(home),
        worktree_branch="",
    )


async def _post(home: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """Send ``POST /agent/start`` to a new agentctl, and end it afterwards; return the response."""
    state = home / "state"
    state.mkdir(exist_ok=True)
    sidecar = Sidecar(Execution("execution", "session", home, state), load_drivers())
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    app = build_app(sidecar, EventStreams(sidecar.journal, sidecar.fence), _BEARER, "127.0.0.1", port)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        client = AgentctlClient(f"http://127.0.0.1:{port}", _BEARER, "execution", generation=1)
        return await client.start_agent(body, timeout=10 * PATIENCE)
    finally:
        await sidecar.stop_for_good()
        await runner.cleanup()
        await sidecar.close()
