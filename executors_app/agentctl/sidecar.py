"""One agentctl without its HTTP: the agent, its journal and its memory, and what may be asked of them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app import crash_points
from executors_app.agentctl.agent_lifecycle import AgentLifecycle, DriverFactory
from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.drivers import StartRequest
from executors_app.agentctl.jobs.runner import JobRunner
from executors_app.agentctl.jobs.store import JobRecords
from executors_app.agentctl.journal.journal import Journal, JournalLimits
from executors_app.agentctl.journal.line_format import journal_directory
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.process import subreaper
from executors_app.agentctl.protocol import EXECUTION_MARKER, PROTOCOL_VERSION, ApiError, Code, JournalKind, Status
from executors_app.agentctl.state_files import DurableStore, GenerationFence, TokenFile
from executors_app.agentctl.turns import Turns
from executors_app.agentctl.workspace.snapshots import SnapshotService
from executors_app.agentctl.workspace.workspace import Workspace, WorkspacePreparation

ABANDONED_AFTER: Final = 7 * 24 * 3600.0
"""Seconds without any control plane until agentctl ends by itself (rule 26)."""
_STOP_GRACE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Execution:
    """Whose agentctl this is."""

    execution_id: str
    session_id: str
    workspace: Path
    state_dir: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    worktree_id: str = ""
    """The session whose worktree the workspace is, and under whose name it is kept; empty: its own."""
    preparation: WorkspacePreparation | None = None
    """How the workspace is made; None: somebody else has made it."""


class Sidecar:
    """Made inside a running loop, over a state directory that nobody else uses."""

    def __init__(self, execution: Execution, drivers: Mapping[str, DriverFactory], limits: JournalLimits | None = None):
        self.execution = execution
        self.boot_id = uuid.uuid4().hex
        self.started_at = datetime.now(UTC).isoformat()
        self.ended = asyncio.Event()
        self._ending = False
        self.last_contact = time.monotonic()
        state = execution.state_dir
        accepted: list[str] = []
        self.memory, self.token = DurableStore(state / "memory.jsonl"), TokenFile(state / "token.json")
        self.journal = Journal(
            journal_directory(state),
            limits=limits or JournalLimits(),
            seen=lambda line: _collect_accepted(line, accepted),
        )
        self.journal.redact = self.token.discretion.redact
        self.fence = GenerationFence(self.memory)
        self._permissions = Permissions(self.journal, self.memory)
        self._turns = Turns(self.journal, self.memory, self._permissions)
        for message_id in accepted:
            self._turns.remember(message_id)
        self._life = AgentLifecycle(
            journal=self.journal,
            memory=self.memory,
            token=self.token,
            turns=self._turns,
            permissions=self._permissions,
            conversations=ConversationStore(state / "conversations"),
            drivers=drivers,
            marker={EXECUTION_MARKER: execution.execution_id},
        )
        self.workspace = Workspace(
            execution.workspace, {EXECUTION_MARKER: execution.execution_id}, execution.preparation
        )
        self.jobs = JobRunner(
            execution.workspace, JobRecords(state, self.memory), {EXECUTION_MARKER: execution.execution_id}
        )
        kept_as = execution.worktree_id or execution.session_id
        self.keeper = SnapshotService(self.workspace, kept_as, state, self.journal)
        self._turns.before_turn, self._turns.after_turn = self.keeper.before_turn, self.keeper.after_turn
        self._intents: dict[str, asyncio.Task[dict[str, Any]]] = {}

    @property
    def is_at_work(self) -> bool:
        """An agent lives, or is on its way, or a job runs."""
        return self._life.is_running or self.jobs.running > 0

    # -- commands ----------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> dict[str, Any]:
        """``POST /agent/start``; raises Refused, StartFailed."""
        return await self._life.start(request)

    async def stop(self, grace: float, intent_id: str) -> dict[str, Any]:
        """``POST /agent/stop``: the same intent again gets the first result and stops nothing."""
        return await self._once(intent_id, lambda: self._life.stop(grace))

    async def prompt(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], prompt_kind: str
    ) -> dict[str, bool]:
        """``POST /prompt``; raises Refused."""
        return await self._turns.accept(self._life.driver, message_id, text, attachments, prompt_kind)

    async def cancel(self, message_id: str) -> dict[str, bool]:
        """``POST /cancel``."""
        return await self._turns.cancel(self._life.driver() if self._life.is_running else None, message_id)

    async def answer(self, permission_id: str, option_id: str) -> dict[str, Any]:
        """``POST /permissions/{id}``; raises Refused."""
        return await self._permissions.answer(permission_id, option_id)

    async def cancel_permission(self, permission_id: str) -> dict[str, Any]:
        """``POST /permissions/{id}`` without an option: nobody answered in time; raises Refused."""
        return await self._permissions.give_up(permission_id)

    async def shutdown(self, stop_agent: bool, intent_id: str) -> dict[str, Any]:
        """``POST /shutdown``: ends agentctl once the answer is out; a live agent only if told so."""
        if self._life.is_running and not stop_agent:
            raise ApiError(Code.ALREADY_RUNNING, "an agent is running and would end too", state=self._life.state)
        result = await self._once(intent_id, self._end)
        if self._ending:  # not so where an earlier agentctl did it
            self.ended.set()
        return result

    async def _end(self) -> dict[str, Any]:
        self._ending = True
        stopped = await self._life.stop(_STOP_GRACE)
        await self._leave_workspace()
        return {**stopped, "journal": self.journal.report()}

    async def _once(self, intent_id: str, act: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        if not intent_id:
            return await act()
        earlier: dict[str, Any] | None = self.memory.recall("intent", intent_id)
        if earlier is not None:
            return earlier
        if intent_id not in self._intents:
            self._intents[intent_id] = asyncio.create_task(self._act_and_remember(intent_id, act))
        return await asyncio.shield(self._intents[intent_id])

    async def _act_and_remember(self, intent_id: str, act: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        try:
            result = await act()
            crash_points.reached("agentctl.agent_stopped")
            self.memory.keep("intent", intent_id, result)
            crash_points.reached("agentctl.stop_remembered")
            return result
        finally:
            del self._intents[intent_id]

    # -- reports -----------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """``GET /health``."""
        return {"status": "ok", "version": PROTOCOL_VERSION, "boot_id": self.boot_id}

    def capabilities(self) -> dict[str, Any]:
        """``GET /capabilities``: null where no agent has told it yet."""
        started = self._life.started
        told: Mapping[str, Any] = started.capabilities if started else {}
        load, resume = told.get("load_session"), told.get("resume_session")
        can_resume = None if started is None else bool(load or resume)
        return {
            "supports_session_resume": can_resume,
            "supports_workspace_only": bool(self.workspace.report()["exists"]),
            "requires_new_session": None if can_resume is None else not can_resume,
            "history": told.get("history"),
            "protocol": told.get("protocol"),
            "load_session": load,
            "resume_session": resume,
            "agent": dict(started.agent) if started else {"name": None, "version": None},
        }

    def status(self) -> Status:
        """``GET /status``."""
        return {
            "status": "ok",
            "version": PROTOCOL_VERSION,
            "boot_id": self.boot_id,
            "capabilities": self.capabilities(),
            "session_id": self.execution.session_id,
            "execution_id": self.execution.execution_id,
            "generation": self.fence.generation,
            "agent": self._life.report(),
            "journal": self.journal.report(),
            "pending_permissions": self._permissions.pending(),
            "workspace": self.workspace.report(),
            "jobs": self.jobs.running,
        }

    def session(self) -> dict[str, Any]:
        """``GET /agent/session``: the token is a credential."""
        return {
            "resume_token": self.token.value,
            "last_message_uuid": self.token.last_message_uuid,
            "fingerprint": self.token.fingerprint,
        }

    def left(self) -> dict[str, Any]:
        """``GET /agent/left``: the processes that the last agent left running, and that ended with it."""
        return {"processes": self.token.discretion.redact(subreaper.read_killed_processes())}

    # -- the end -----------------------------------------------------------------------------

    async def end_when_abandoned(self, is_attached: Callable[[], bool], after: float = ABANDONED_AFTER) -> None:
        """Set ``ended`` once there was no contact for that long; an attached stream is contact."""
        while (left := self.last_contact + after - time.monotonic()) > 0:
            await asyncio.sleep(left)
            if is_attached():
                self.last_contact = time.monotonic()
        self.journal.append(JournalKind.AGENTCTL_ABANDONED, after=after)
        self.ended.set()

    async def stop_for_good(self) -> None:
        """Stop the agent, whatever it does, and keep what it leaves."""
        await self._life.stop(_STOP_GRACE)
        await self._leave_workspace()

    async def _leave_workspace(self) -> None:
        """Nothing of ours works in it any more, so what is there now is what is kept."""
        await self.jobs.close()
        await self.workspace.shells.close()
        await self.keeper.at_the_end()

    async def close(self) -> None:
        """Bring everything to the disk and let go of it."""
        await self.workspace.close()
        await self.journal.close()
        self.memory.close()


def _collect_accepted(line: Mapping[str, Any], accepted: list[str]) -> None:
    if line.get("kind") == JournalKind.PROMPT_ACCEPTED:
        accepted.append(str(line.get("message_id")))
