"""Start, stop and report the agent of an execution: at most one process at a time.

States are those of ``AgentState``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.driver_host import DriverHost
from executors_app.agentctl.drivers import (
    DeletionResult,
    Driver,
    Host,
    KeepsProcesses,
    StartFailed,
    StartRequest,
    StartResult,
    SupportsDeletion,
)
from executors_app.agentctl.journal import Journal
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.process.background import (
    BackgroundProcesses,
    BackgroundReports,
    BackgroundWork,
)
from executors_app.agentctl.state_files import DurableStore, TokenFile
from executors_app.agentctl.turns import Turns
from executors_app.machine import crash_points
from executors_app.wire.protocol import (
    AgentReport,
    AgentState,
    ApiError,
    Code,
    JournalKind,
    validation_error,
)
from executors_app.wire.token_redaction import token_fingerprint

logger = logging.getLogger(__name__)

DriverFactory = Callable[[Host, Mapping[str, str]], Driver]
_LOST_GRACE: Final = 1.0
_UNLISTED: Final = "more processes than are read"
"""Instead of a command line, if nothing else is known of what the agent may have left running."""
_TIMEOUT_MARGIN: Final = 5.0
"""Seconds beyond the handshake's own limit, after which a driver that does not return is stopped."""


@dataclass(slots=True)
class _AgentLaunch:
    """One launch of an agent, until its process ends."""

    launch_id: str
    host: DriverHost
    driver: Driver
    since: str
    start_task: asyncio.Task[dict[str, Any]] | None = None
    started: StartResult | None = None
    stop_requested: bool = False
    has_exited: bool = False
    exit_code: int | None = None


class AgentLifecycle:
    """Starts and stops the agent, and records how it ended; ``drivers`` are the factories by protocol name."""

    def __init__(
        self,
        *,
        journal: Journal,
        memory: DurableStore,
        token: TokenFile,
        turns: Turns,
        permissions: Permissions,
        conversations: ConversationStore,
        drivers: Mapping[str, DriverFactory],
        marker: Mapping[str, str],
    ):
        self._journal, self._store, self._token = journal, memory, token
        self._turns, self._permissions, self._conversations = turns, permissions, conversations
        self._drivers, self._marker = drivers, marker
        turns.on_conversation_lost = self._stop_without_conversation
        self._agent: _AgentLaunch | None = None
        self._state = AgentState.NONE
        self._background = BackgroundProcesses()
        self._background_reports = BackgroundReports(
            self._running_in_background, journal.append, lambda: self._background.secrets
        )
        self._lost_stop: asyncio.Task[Any] | None = None

    # -- reports -----------------------------------------------------------------------------

    @property
    def state(self) -> AgentState:
        """``agent.state`` of ``GET /status``."""
        if self._state == AgentState.IDLE and self._turns.active_turn:
            return AgentState.WORKING
        return self._state

    @property
    def started(self) -> StartResult | None:
        """The start result of the current or last agent."""
        if self._agent:
            return self._agent.started
        return None

    @property
    def is_running(self) -> bool:
        """Whether an agent is running or starting."""
        return self._state in (AgentState.STARTING, AgentState.IDLE)

    def driver(self) -> Driver:
        """Return the driver of the running agent; raises ApiError if there is none."""
        if self._agent is None or self._state != AgentState.IDLE:
            raise ApiError(Code.NOT_RUNNING, "no agent is running", state=self.state)
        return self._agent.driver

    def report(self) -> AgentReport:
        """``agent`` of ``GET /status``."""
        report: AgentReport = {
            "state": self.state,
            "pid": None,
            "started_at": None,
            "session_fingerprint": self._token.fingerprint,
            "active_turn": self._turns.active_turn,
            "exit_code": None,
            "launch_id": None,
        }
        agent = self._agent
        if agent is None:
            return report
        report["started_at"], report["launch_id"], report["exit_code"] = agent.since, agent.launch_id, agent.exit_code
        if not agent.has_exited:
            report["pid"] = agent.driver.pid
        return report

    def background_processes(self) -> list[str]:
        """Return the command lines of processes that a turn has begun and that have outlived it."""
        running = self._running_in_background() or BackgroundWork()
        commands = [process.command for process in running.listed(self._background.secrets)]
        if not commands and not running.is_complete:
            commands = [_UNLISTED]
        redacted: list[str] = self._token.redactor.redact(commands)
        return redacted

    def _running_in_background(self) -> BackgroundWork | None:
        """Return the processes that turns have left running; None without an agent."""
        agent = self._agent
        if agent is None or agent.has_exited or self._state != AgentState.IDLE:
            return None
        turn_is_open = self._turns.active_turn is not None
        return self._background.running(agent.driver.pid, _guards_of(agent.driver), turn_is_open=turn_is_open)

    def note_turn_begins(self) -> None:
        """Remember which processes run before the agent gets a prompt: the turn has not begun them."""
        if self._agent is not None:
            self._background.note_work_began(self._agent.driver.pid, _guards_of(self._agent.driver))

    def note_turn_ended(self) -> None:
        """Watch the processes that the turn has left running."""
        self._background_reports.after_turn()

    def _note_output_outside_turn(self) -> None:
        if not self._background.has_worked:
            self.note_turn_begins()
        self._background_reports.note_output()

    # -- start -------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> dict[str, Any]:
        """Start or resume the agent and return the answer of ``POST /agent/start``; raises ApiError, StartFailed.

        A repeated request for the running launch waits for the same result.
        """
        agent = self._agent
        if agent is not None and self.is_running:
            if agent.launch_id != request.launch_id:
                raise ApiError(Code.ALREADY_RUNNING, "another launch is running", launch_id=agent.launch_id)
        else:
            self._refuse_repeated_launch(request.launch_id)
            self._refuse_second_process()
            agent = self._begin(request)
        assert agent.start_task is not None  # noqa: S101  (set by _begin)
        # The caller may disconnect: the launch continues, and its result is stored for the next request.
        return await asyncio.shield(agent.start_task)

    def _refuse_repeated_launch(self, launch_id: str) -> None:
        earlier = self._store.get("launch", launch_id)
        if earlier is None:
            return
        if failed := earlier.get("failed"):
            raise StartFailed(**failed)
        raise ApiError(Code.LAUNCH_ENDED, "the agent of this launch has ended", launch_id=launch_id)

    def _refuse_second_process(self) -> None:
        """Raise ApiError while the process of an earlier launch still lives: no conversation may have two writers."""
        agent = self._agent
        if agent is not None and agent.driver.pid is not None:
            running = {"launch_id": agent.launch_id, "pid": agent.driver.pid}
            raise ApiError(Code.ALREADY_RUNNING, "the process of an earlier launch has not ended", **running)

    def _begin(self, request: StartRequest) -> _AgentLaunch:
        create = self._drivers.get(request.driver)
        if create is None:
            raise validation_error("there is no such driver", driver=request.driver, known=sorted(self._drivers))
        auto_approve = request.permission_mode == "auto_approve"
        parts = (self._journal, self._token, self._turns, self._permissions, self._conversations)
        host = DriverHost(*parts, auto_approve=auto_approve)
        agent = _AgentLaunch(request.launch_id, host, create(host, self._marker), datetime.now(UTC).isoformat())
        host.on_exit = lambda exit_code: self._handle_exit(agent, exit_code)
        host.on_output_outside_turn = self._note_output_outside_turn
        self._journal.append(JournalKind.AGENT_STARTING, launch_id=request.launch_id, strategy=request.strategy)
        self._agent, self._state = agent, AgentState.STARTING
        self._background.note_started(request.mcp_servers, request.env)
        agent.start_task = asyncio.create_task(self._launch(agent, request), name=f"launch {request.launch_id}")
        return agent

    async def _launch(self, agent: _AgentLaunch, request: StartRequest) -> dict[str, Any]:
        crash_points.reached("agentctl.start_begun")
        self._token.redactor.add_token(request.resume_token)  # first, because errors of the handshake may quote it
        try:
            started = await self._handshake(agent, request)
        except StartFailed as error:
            agent.host.release_log_lines()
            raise self._record_failure(agent, error) from error
        except BaseException:
            agent.host.release_log_lines()
            raise
        if started.resume_token:
            agent.host.release_log_lines()
        self._record_success(agent, started)
        answer = {"launch_id": request.launch_id, **asdict(started), "pid": agent.driver.pid, "started_at": agent.since}
        await self._journal.wait_until_durable(self._journal.last_seq)
        crash_points.reached("agentctl.agent_ready")
        self._store_result(request.launch_id, {"answer": answer})
        crash_points.reached("agentctl.launch_remembered")
        return answer

    async def _handshake(self, agent: _AgentLaunch, request: StartRequest) -> StartResult:
        try:
            async with asyncio.timeout(request.time_limit + _TIMEOUT_MARGIN):
                started = await agent.driver.start(request)
                if started.resume_token not in (None, self._token.value):
                    await agent.host.keep_token(started.resume_token)
                return started
        except StartFailed:
            raise
        except TimeoutError:
            failure = StartFailed(Code.START_TIMEOUT, "the agent was not ready in time")
        except asyncio.CancelledError:
            if not agent.stop_requested:
                raise
            failure = StartFailed(Code.AGENT_EXITED, "the agent was stopped while it started")
        except Exception:
            logger.exception("the driver failed during a start")
            failure = StartFailed(Code.INTERNAL_ERROR, "the driver failed")
        with contextlib.suppress(Exception):
            await agent.driver.stop(0)
        raise failure

    def _record_success(self, agent: _AgentLaunch, started: StartResult) -> None:
        agent.started = started
        self._journal.append(
            JournalKind.AGENT_STARTED,
            launch_id=agent.launch_id,
            pid=agent.driver.pid,
            started_at=agent.since,
            agent=dict(started.agent),
            capabilities=dict(started.capabilities),
        )
        self._journal.append(
            JournalKind(f"session.{started.outcome}"),
            launch_id=agent.launch_id,
            fingerprint=token_fingerprint(started.resume_token) if started.resume_token else None,
            replayed=started.replayed,
            replayed_user_texts=list(started.replayed_user_texts),
        )
        self._state = AgentState.IDLE
        self._turns.driver = agent.driver
        if agent.has_exited:  # it ended during the start, when ``_handle_exit`` leaves the record to us
            self._record_exit(agent)

    def _record_failure(self, agent: _AgentLaunch, error: StartFailed) -> StartFailed:
        """Journal and store the failure, and return it with conversation ids redacted: agents quote them in errors."""
        self._state = AgentState.FAILED
        agent.has_exited = True
        failed = {
            "code": str(error.code),
            "message": self._token.redactor.redact(error.message),
            "permanent": error.permanent,
            "token_valid": error.token_valid,
        }
        self._journal.append(JournalKind.AGENT_FAILED, launch_id=agent.launch_id, **failed)
        self._permissions.cancel_all("agent_gone")
        failed["told"] = self._token.redactor.redact(error.told)
        self._store_result(agent.launch_id, {"failed": failed})
        return StartFailed(**failed)

    def _store_result(self, launch_id: str, result: dict[str, Any]) -> None:
        try:
            self._store.put("launch", launch_id, result)
        except OSError as error:
            logger.error("the result of a launch could not be stored: %s", error.strerror)

    # -- end ---------------------------------------------------------------------------------

    async def stop(self, grace: float, *, delete_transcript: bool = False) -> dict[str, Any]:
        """End the agent's whole process tree; ``stopped`` is False if no agent was running.

        With ``delete_transcript`` the agent is asked first to delete its own, and ``transcript`` is the result:
        ``{"deleted", "confirmed", "reason"}``.
        """
        agent = self._agent
        self._turns.note_interruption()
        if delete_transcript:
            transcript = {"transcript": await self._delete_transcript()}
        else:
            transcript = {}
        if agent is None or not self.is_running:
            return {"stopped": False, "exit_code": agent.exit_code if agent else None, **transcript}
        agent.stop_requested = True
        if self._state == AgentState.STARTING and agent.start_task is not None:
            agent.start_task.cancel()
            await asyncio.wait([agent.start_task])
        else:
            self._handle_exit(agent, await agent.driver.stop(grace))
        return {"stopped": True, "exit_code": agent.exit_code, **transcript}

    async def _delete_transcript(self) -> dict[str, Any]:
        if self._agent is not None and self._state == AgentState.IDLE:
            driver = self._agent.driver
        else:
            driver = None
        if driver is None:
            result = DeletionResult("no agent is running")
        elif not isinstance(driver, SupportsDeletion):
            result = DeletionResult("the agent does not offer to delete its transcript")
        else:
            result = await driver.delete_conversation()
        reason = self._token.redactor.redact(result.reason)
        return {"deleted": not result.reason, "confirmed": result.is_confirmed, "reason": reason}

    def _stop_without_conversation(self, code: str) -> None:
        """Stop an agent whose turn showed that it is not in its conversation: it must get no further prompt.

        If it has only closed the conversation, nobody has asked for this end, so that the control plane starts the
        agent again, which restores the conversation or reports that it is lost.
        """
        agent, name = self._agent, "agent without its conversation"
        if code == Code.CONVERSATION_CLOSED and agent is not None:
            self._lost_stop = asyncio.create_task(agent.driver.stop(_LOST_GRACE), name=name)
        else:
            self._lost_stop = asyncio.create_task(self.stop(_LOST_GRACE), name=name)

    def _handle_exit(self, agent: _AgentLaunch, exit_code: int | None) -> None:
        if agent.has_exited:
            return
        agent.has_exited, agent.exit_code = True, exit_code
        if self._state != AgentState.STARTING:
            self._record_exit(agent)

    def _record_exit(self, agent: _AgentLaunch) -> None:
        self._state = AgentState.EXITED
        self._turns.driver = None
        self._background_reports.close()
        reason = "agent_gone"
        if agent.stop_requested:
            reason = "stopped"
        self._permissions.cancel_all(reason)
        self._journal.append(
            JournalKind.AGENT_EXITED,
            launch_id=agent.launch_id,
            exit_code=agent.exit_code,
            expected=agent.stop_requested,
            message_id=self._turns.abandon_active_turn(),
        )


def _guards_of(driver: Driver) -> tuple[int, ...]:
    """Return the guards of ended turns under which something still runs."""
    if isinstance(driver, KeepsProcesses):
        return tuple(driver.guard_pids())
    return ()
