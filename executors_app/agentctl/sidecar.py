"""One execution without its HTTP: the agent, its turns and settings, the journal and the state files."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from executors_app import __version__
from executors_app.agentctl.agent_lifecycle import AgentLifecycle, DriverFactory
from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.jobs.records import JobRecords
from executors_app.agentctl.jobs.runner import JobRunner
from executors_app.agentctl.journal import Journal, JournalLimits
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.process import subreaper
from executors_app.agentctl.setting_changes import SettingChanges
from executors_app.agentctl.state_files import DurableStore, GenerationFence, TokenFile
from executors_app.agentctl.steering import STATE_BY_LINE, Steering
from executors_app.agentctl.turns import Turns
from executors_app.agentctl.workspace.preparation import WorkspacePreparation
from executors_app.agentctl.workspace.snapshot_service import SnapshotService
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine import crash_points
from executors_app.wire.command_redaction import redact_command
from executors_app.wire.journal_files import journal_directory
from executors_app.wire.protocol import EXECUTION_MARKER, PROTOCOL_VERSION, ApiError, Code, JournalKind, Status

ABANDONED_AFTER: Final = 7 * 24 * 3600.0
"""Seconds without contact to a control plane after which agentctl ends."""
_STOP_GRACE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution that this agentctl serves."""

    execution_id: str
    session_id: str
    workspace: Path
    state_dir: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    worktree_id: str = ""
    """The session that owns the worktree and its snapshots; empty: this session."""
    preparation: WorkspacePreparation | None = None
    """How to create the workspace; None if it exists already."""


class Sidecar:
    """Create it in a running event loop, for a state directory that this process has locked."""

    def __init__(self, execution: Execution, drivers: Mapping[str, DriverFactory], limits: JournalLimits | None = None):
        self.execution = execution
        self.boot_id = uuid.uuid4().hex
        self.started_at = datetime.now(UTC).isoformat()
        self.ended = asyncio.Event()
        self._ending = False
        self.last_contact = time.monotonic()
        state = execution.state_dir
        accepted: list[str] = []
        steered: dict[str, str] = {}
        self.store, self.token = DurableStore(state / "memory.jsonl"), TokenFile(state / "token.json")
        self.journal = Journal(
            journal_directory(state),
            limits=limits or JournalLimits(),
            seen=lambda line: _collect_accepted(line, accepted, steered),
        )
        self.journal.redact = self.token.redactor.redact
        self.fence = GenerationFence(self.store)
        self.permissions = Permissions(self.journal, self.store)
        self.turns = Turns(self.journal, self.store, self.permissions)
        for message_id in accepted:
            self.turns.mark_accepted(message_id)
        self.steering = Steering(self.journal, self.store, self.turns)
        self.steering.restore(steered)
        self.agent = AgentLifecycle(
            journal=self.journal,
            memory=self.store,
            token=self.token,
            turns=self.turns,
            permissions=self.permissions,
            conversations=ConversationStore(state / "conversations"),
            drivers=drivers,
            marker={EXECUTION_MARKER: execution.execution_id},
        )
        self.workspace = Workspace(
            execution.workspace, {EXECUTION_MARKER: execution.execution_id}, execution.preparation
        )
        self.jobs = JobRunner(
            execution.workspace, JobRecords(state, self.store), {EXECUTION_MARKER: execution.execution_id}
        )
        kept_as = execution.worktree_id or execution.session_id
        self.snapshots = SnapshotService(self.workspace, kept_as, state, self.journal)
        self.turns.before_turn, self.turns.after_turn = self._before_turn, self._after_turn
        self.settings = SettingChanges(self.journal, self.store)
        self._intents: dict[str, asyncio.Task[dict[str, Any]]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether an agent is running or starting, or a job runs."""
        return self.agent.is_running or self.jobs.running_count > 0

    # -- commands ----------------------------------------------------------------------------

    async def prepare_workspace(self) -> None:
        """Prepare the workspace for an agent, and journal what people and the agent should know about it."""
        if self.agent.is_running:
            return
        for notice in await self.workspace.call(self.workspace.prepare_for_agent):
            self.snapshots.tell(notice)

    async def stop(self, grace: float, intent_id: str, *, delete_transcript: bool = False) -> dict[str, Any]:
        """``POST /agent/stop``; a repeated intent returns the first result and stops nothing."""
        return await self._run_once(intent_id, lambda: self.agent.stop(grace, delete_transcript=delete_transcript))

    async def cancel(self, message_id: str) -> dict[str, bool]:
        """``POST /cancel``."""
        return await self.turns.cancel(message_id)

    async def shutdown(self, stop_agent: bool, intent_id: str) -> dict[str, Any]:
        """``POST /shutdown``: end agentctl after the answer was sent; a running agent only with ``stop_agent``."""
        if self.agent.is_running and not stop_agent:
            raise ApiError(Code.ALREADY_RUNNING, "an agent is running and would end too", state=self.agent.state)
        result = await self._run_once(intent_id, self._stop_everything)
        if self._ending:  # not if an earlier agentctl stored this result
            self.ended.set()
        return result

    async def _stop_everything(self) -> dict[str, Any]:
        self._ending = True
        stopped = await self.agent.stop(_STOP_GRACE)
        await self._leave_workspace()
        return {**stopped, "journal": self.journal.report()}

    async def _run_once(self, intent_id: str, act: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        if not intent_id:
            return await act()
        earlier: dict[str, Any] | None = self.store.get("intent", intent_id)
        if earlier is not None:
            return earlier
        if intent_id not in self._intents:
            self._intents[intent_id] = asyncio.create_task(self._run_and_store(intent_id, act))
        # The caller may disconnect: the command continues, and its result is stored for the next request.
        return await asyncio.shield(self._intents[intent_id])

    async def _run_and_store(self, intent_id: str, act: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        try:
            # After a crash between the two, a repeated request acts again: by then there is nothing left to stop.
            result = await act()
            crash_points.reached("agentctl.agent_stopped")
            self.store.put("intent", intent_id, result)
            crash_points.reached("agentctl.stop_remembered")
            return result
        finally:
            del self._intents[intent_id]

    # -- reports -----------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """``GET /health``."""
        return {"status": "ok", "version": PROTOCOL_VERSION, "release": __version__, "boot_id": self.boot_id}

    def capabilities(self) -> dict[str, Any]:
        """``GET /capabilities``; null for what no agent has reported yet."""
        claims: Mapping[str, Any] = {}
        agent: dict[str, Any] = {"name": None, "version": None}
        can_resume = requires_new = None
        if started := self.agent.started:
            claims, agent = started.capabilities, dict(started.agent)
            can_resume = bool(claims.get("load_session") or claims.get("resume_session"))
            requires_new = not can_resume
        return {
            "supports_session_resume": can_resume,
            "supports_workspace_only": bool(self.workspace.report()["exists"]),
            "requires_new_session": requires_new,
            "history": claims.get("history"),
            "protocol": claims.get("protocol"),
            "load_session": claims.get("load_session"),
            "resume_session": claims.get("resume_session"),
            "prompt": claims.get("prompt"),
            "agent": agent,
        }

    def status(self) -> Status:
        """``GET /status``."""
        return {
            "status": "ok",
            "version": PROTOCOL_VERSION,
            "release": __version__,
            "boot_id": self.boot_id,
            "capabilities": self.capabilities(),
            "session_id": self.execution.session_id,
            "execution_id": self.execution.execution_id,
            "generation": self.fence.generation,
            "agent": self.agent.report(),
            "journal": self.journal.report(),
            "pending_permissions": self.permissions.pending(),
            "workspace": self.workspace.report(),
            "jobs": self.jobs.running_count,
            "background": self.agent.background_processes(),
        }

    async def _before_turn(self) -> None:
        await self.snapshots.before_turn()
        self.agent.note_turn_begins()

    def _after_turn(self) -> None:
        self.snapshots.after_turn()
        self.agent.note_turn_ended()

    def agent_session(self) -> dict[str, Any]:
        """``GET /agent/session``; the resume token is a credential."""
        return {
            "resume_token": self.token.value,
            "last_message_uuid": self.token.last_message_uuid,
            "fingerprint": self.token.fingerprint,
        }

    def killed_processes(self) -> dict[str, Any]:
        """``GET /agent/left``: the processes that the last agent left running and that were killed with it."""
        return {"processes": self.token.redactor.redact(list(map(redact_command, subreaper.read_killed_processes())))}

    # -- the end -----------------------------------------------------------------------------

    async def end_when_abandoned(self, is_attached: Callable[[], bool], after: float = ABANDONED_AFTER) -> None:
        """Set ``ended`` after ``after`` seconds without contact; an open event stream counts as contact."""
        while (remaining := self.last_contact + after - time.monotonic()) > 0:
            await asyncio.sleep(remaining)
            if is_attached():
                self.last_contact = time.monotonic()
        self.journal.append(JournalKind.AGENTCTL_ABANDONED, after=after)
        self.ended.set()

    async def stop_for_good(self) -> None:
        """Stop the agent and take a last snapshot of the workspace."""
        await self.agent.stop(_STOP_GRACE)
        await self._leave_workspace()

    async def _leave_workspace(self) -> None:
        """Close jobs and shells, then take the last snapshot: nothing of ours changes the files after it."""
        await self.jobs.close()
        await self.workspace.shells.close()
        await self.snapshots.before_shutdown()

    async def close(self) -> None:
        """Flush and close all files."""
        await self.workspace.close()
        await self.journal.close()
        self.store.close()


def _collect_accepted(line: Mapping[str, Any], accepted: list[str], steered: dict[str, str]) -> None:
    kind, message_id = str(line.get("kind")), str(line.get("message_id"))
    if kind == JournalKind.PROMPT_ACCEPTED:
        accepted.append(message_id)
    elif kind in STATE_BY_LINE:
        steered[message_id] = STATE_BY_LINE[kind]
