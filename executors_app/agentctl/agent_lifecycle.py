"""The lifecycle of the agent (none, starting, alive, exited, failed.

At most one at a time), and the host that its driver reports to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from executors_app import crash_points
from executors_app.agentctl.conversation_store import ConversationStore
from executors_app.agentctl.drivers import Driver, Host, StartFailed, StartRequest, StartResult
from executors_app.agentctl.journal.filters import token_fingerprint
from executors_app.agentctl.journal.journal import Journal
from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.protocol import (
    OUTPUT_KINDS,
    AgentReport,
    AgentState,
    ApiError,
    Code,
    JournalKind,
    validation_error,
)
from executors_app.agentctl.state_files import DurableStore, TokenFile
from executors_app.agentctl.turns import Turns


class DriverHost:
    """The host of one agent process; ``on_gone`` is called when that process ends."""

    def __init__(
        self,
        journal: Journal,
        token: TokenFile,
        turns: Turns,
        permissions: Permissions,
        conversations: ConversationStore,
        *,
        auto_approve: bool,
    ):
        self.conversations = conversations
        self._journal, self._token = journal, token
        self._turns, self._permissions = turns, permissions
        self._auto_approve = auto_approve
        self.on_gone: Callable[[int | None], None] = lambda exit_code: None
        self._unsaid: list[dict[str, Any]] | None = []

    def record(self, kind: str, **body: Any) -> int:
        """Append a journal line; a log line waits until the conversation has an id, because it may tell that one."""
        if kind == JournalKind.LOG and self._unsaid is not None:
            self._unsaid.append(body)
            return self._journal.last_seq
        if kind in OUTPUT_KINDS and body.get("text") != "":
            self._turns.note_output()
        return self._journal.append(kind, **body)

    def release_log_lines(self) -> None:
        """The conversation's id is known, or there is none to come: nothing need wait any more."""
        unsaid, self._unsaid = self._unsaid or [], None
        for body in unsaid:
            self._journal.append(JournalKind.LOG, **body)

    async def room(self) -> None:
        """Wait while the journal has no room."""
        await self._journal.room()

    async def keep_token(self, token: str, last_message_uuid: str | None = None) -> None:
        """Keep the conversation id; the journal tells its fingerprint alone."""
        if self._token.keep(token, last_message_uuid):
            crash_points.reached("agentctl.token_kept")
            identified = {"fingerprint": token_fingerprint(token), "last_message_uuid": last_message_uuid}
            self._journal.append(JournalKind.SESSION_IDENTIFIED, **identified)
        self.release_log_lines()

    async def ask_permission(self, request: Mapping[str, Any]) -> str | None:
        """Hold a permission open until it is answered or cancelled."""
        return await self._permissions.ask(
            request, self._turns.message_id, auto_approve=self._auto_approve, refuse=self._turns.cancel_asked
        )

    def agent_gone(self, exit_code: int | None) -> None:
        """Tell that the process ended."""
        self.release_log_lines()
        self.on_gone(exit_code)


logger = logging.getLogger(__name__)

DriverFactory = Callable[[Host, Mapping[str, str]], Driver]
_LOST_GRACE: Final = 1.0
_TIMEOUT_MARGIN: Final = 5.0
"""Seconds beyond the handshake's own limit before a driver is given up."""


@dataclass(slots=True)
class _AgentLaunch:
    """One launch, from its beginning to the end of its process."""

    launch_id: str
    seat: DriverHost
    driver: Driver
    since: str
    launching: asyncio.Task[dict[str, Any]] | None = None
    started: StartResult | None = None
    stop_asked: bool = False
    gone: bool = False
    exit_code: int | None = None


class AgentLifecycle:
    """Starts, stops and buries the agent; ``drivers`` are the factories by protocol name."""

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
        self._journal, self._memory, self._token = journal, memory, token
        self._turns, self._permissions, self._conversations = turns, permissions, conversations
        self._drivers, self._marker = drivers, marker
        turns.on_lost = self._stop_lost
        self._agent: _AgentLaunch | None = None
        self._state = AgentState.NONE
        self._lost: asyncio.Task[dict[str, Any]] | None = None

    # -- reports -----------------------------------------------------------------------------

    @property
    def state(self) -> AgentState:
        """What ``GET /status`` says."""
        return AgentState.WORKING if self._state == AgentState.IDLE and self._turns.active else self._state

    @property
    def started(self) -> StartResult | None:
        """What the present or last agent told at its start."""
        return self._agent.started if self._agent else None

    @property
    def is_running(self) -> bool:
        """An agent process lives, or is on its way."""
        return self._state in (AgentState.STARTING, AgentState.IDLE)

    def driver(self) -> Driver:
        """The driver of the live agent; Refused if none is there."""
        if self._agent is None or self._state != AgentState.IDLE:
            raise ApiError(Code.NOT_RUNNING, "no agent is running", state=self.state)
        return self._agent.driver

    def report(self) -> AgentReport:
        """``agent`` of ``GET /status``."""
        agent = self._agent
        return {
            "state": self.state,
            "pid": agent.driver.pid if agent and not agent.gone else None,
            "started_at": agent.since if agent else None,
            "session_fingerprint": self._token.fingerprint,
            "active_turn": self._turns.active,
            "exit_code": agent.exit_code if agent else None,
            "launch_id": agent.launch_id if agent else None,
        }

    # -- start -------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> dict[str, Any]:
        """Start or resume the agent; the answer of ``POST /agent/start``. Raises Refused, StartFailed."""
        agent = self._agent
        if agent is not None and self.is_running:
            if agent.launch_id != request.launch_id:
                raise ApiError(Code.ALREADY_RUNNING, "another launch is running", launch_id=agent.launch_id)
        else:
            self._refuse_repetition(request.launch_id)
            self._refuse_beside_a_live_one()
            agent = self._begin(request)
        assert agent.launching is not None  # noqa: S101  (set by _begin)
        # Whoever asked may go away; the launch goes on and its result is kept.
        return await asyncio.shield(agent.launching)

    def _refuse_repetition(self, launch_id: str) -> None:
        earlier = self._memory.recall("launch", launch_id)
        if earlier is None:
            return
        if failed := earlier.get("failed"):
            raise StartFailed(**failed)
        raise ApiError(Code.LAUNCH_ENDED, "the agent of this launch has ended", launch_id=launch_id)

    def _refuse_beside_a_live_one(self) -> None:
        """An agent that was given up, yet could not be ended: one conversation never has two writers."""
        agent = self._agent
        if agent is not None and agent.driver.pid is not None:
            told = {"launch_id": agent.launch_id, "pid": agent.driver.pid}
            raise ApiError(Code.ALREADY_RUNNING, "the process of an earlier launch has not ended", **told)

    def _begin(self, request: StartRequest) -> _AgentLaunch:
        create = self._drivers.get(request.driver)
        if create is None:
            raise validation_error("there is no such driver", driver=request.driver, known=sorted(self._drivers))
        auto_approve = request.permission_mode == "auto_approve"
        parts = (self._journal, self._token, self._turns, self._permissions, self._conversations)
        seat = DriverHost(*parts, auto_approve=auto_approve)
        agent = _AgentLaunch(request.launch_id, seat, create(seat, self._marker), datetime.now(UTC).isoformat())
        seat.on_gone = lambda exit_code: self._gone(agent, exit_code)
        self._journal.append(JournalKind.AGENT_STARTING, launch_id=request.launch_id, strategy=request.strategy)
        self._agent, self._state = agent, AgentState.STARTING
        agent.launching = asyncio.create_task(self._launch(agent, request), name=f"launch {request.launch_id}")
        return agent

    async def _launch(self, agent: _AgentLaunch, request: StartRequest) -> dict[str, Any]:
        crash_points.reached("agentctl.start_begun")
        self._token.discretion.add_token(request.resume_token)
        try:
            started = await self._handshake(agent, request)
        except StartFailed as error:
            agent.seat.release_log_lines()
            raise self._failed(agent, error) from error
        except BaseException:
            agent.seat.release_log_lines()
            raise
        if started.resume_token:
            agent.seat.release_log_lines()
        self._succeeded(agent, started)
        answer = {**_start_response(request.launch_id, started), "pid": agent.driver.pid, "started_at": agent.since}
        await self._journal.durable(self._journal.last_seq)
        crash_points.reached("agentctl.agent_ready")
        self._remember(request.launch_id, {"answer": answer})
        crash_points.reached("agentctl.launch_remembered")
        return answer

    async def _handshake(self, agent: _AgentLaunch, request: StartRequest) -> StartResult:
        try:
            async with asyncio.timeout(request.timeout + _TIMEOUT_MARGIN):
                started = await agent.driver.start(request)
                if started.resume_token not in (None, self._token.value):
                    await agent.seat.keep_token(started.resume_token)
                return started
        except StartFailed:
            raise
        except TimeoutError:
            failure = StartFailed(Code.START_TIMEOUT, "the agent did not get ready in time")
        except asyncio.CancelledError:
            if not agent.stop_asked:
                raise
            failure = StartFailed(Code.AGENT_EXITED, "the agent was stopped while it started")
        except Exception:
            logger.exception("the driver broke in a start")
            failure = StartFailed(Code.INTERNAL_ERROR, "the driver broke")
        with contextlib.suppress(Exception):
            await agent.driver.stop(0)
        raise failure

    def _succeeded(self, agent: _AgentLaunch, started: StartResult) -> None:
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
        if agent.gone:  # between its last answer and now
            self._bury(agent)

    def _failed(self, agent: _AgentLaunch, error: StartFailed) -> StartFailed:
        """Remember and say it; the same without the ids of conversations that an agent likes to put into its errors."""
        self._state = AgentState.FAILED
        agent.gone = True
        failed = {
            "code": str(error.code),
            "message": self._token.discretion.redact(error.message),
            "permanent": error.permanent,
            "token_valid": error.token_valid,
        }
        self._journal.append(JournalKind.AGENT_FAILED, launch_id=agent.launch_id, **failed)
        self._permissions.cancel_all("agent_gone")
        failed["told"] = self._token.discretion.redact(error.told)
        self._remember(agent.launch_id, {"failed": failed})
        return StartFailed(**failed)

    def _remember(self, launch_id: str, result: dict[str, Any]) -> None:
        try:
            self._memory.keep("launch", launch_id, result)
        except OSError as error:
            logger.error("could not remember a launch on the disk: %s", error.strerror)

    # -- end ---------------------------------------------------------------------------------

    async def stop(self, grace: float) -> dict[str, Any]:
        """End the agent's whole process tree; ``stopped`` is False if none was there."""
        agent = self._agent
        if agent is None or not self.is_running:
            return {"stopped": False, "exit_code": agent.exit_code if agent else None}
        agent.stop_asked = True
        if self._state == AgentState.STARTING and agent.launching is not None:
            agent.launching.cancel()
            await asyncio.wait([agent.launching])
        else:
            self._gone(agent, await agent.driver.stop(grace))
        return {"stopped": True, "exit_code": agent.exit_code}

    def _stop_lost(self) -> None:
        """A turn has shown that the agent is not in its conversation: it gets no other prompt."""
        self._lost = asyncio.create_task(self.stop(_LOST_GRACE), name="agent without its conversation")

    def _gone(self, agent: _AgentLaunch, exit_code: int | None) -> None:
        if agent.gone:
            return
        agent.gone, agent.exit_code = True, exit_code
        if self._state != AgentState.STARTING:
            self._bury(agent)

    def _bury(self, agent: _AgentLaunch) -> None:
        self._state = AgentState.EXITED
        self._permissions.cancel_all("stopped" if agent.stop_asked else "agent_gone")
        self._journal.append(
            JournalKind.AGENT_EXITED,
            launch_id=agent.launch_id,
            exit_code=agent.exit_code,
            expected=agent.stop_asked,
            message_id=self._turns.break_active_turn(),
        )


def _start_response(launch_id: str, started: StartResult) -> dict[str, Any]:
    return {
        "launch_id": launch_id,
        "outcome": started.outcome,
        "resume_token": started.resume_token,
        "replayed": started.replayed,
        "replayed_user_texts": list(started.replayed_user_texts),
        "agent": dict(started.agent),
        "capabilities": dict(started.capabilities),
        "timings": dict(started.timings),
        "unkept": {name: dict(told) for name, told in started.unkept.items()},
    }
