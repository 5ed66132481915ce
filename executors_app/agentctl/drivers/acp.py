"""The driver for agents that speak ACP, the Agent Client Protocol, version 1."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.drivers import (
    DeletionResult,
    Driver,
    Host,
    SettingRefused,
    StartFailed,
    StartRequest,
    StartResult,
    SteeringRefused,
    TurnFailed,
    acp_session_setup,
)
from executors_app.agentctl.drivers.acp_requests import (
    QUESTION_COMPLETED,
    answer_request,
    complete_question,
)
from executors_app.agentctl.drivers.acp_settings import AcpSettings
from executors_app.agentctl.drivers.acp_updates import PromptedTurn, UpdateRecorder, UpdateRouter, usage_of_answer
from executors_app.agentctl.drivers.failures import BLANK_STOP_REASON, agent_ended, failure_code, stop_reason_text
from executors_app.agentctl.drivers.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    AgentGone,
    JsonRpcConnection,
    RpcError,
    encode_message,
)
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.agentctl.drivers.prompt_content import fit_blocks
from executors_app.agentctl.process.agent_process import AgentProcess, SpawnFailed
from executors_app.agentctl.process.async_io import PipeStuck
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.log_rate_limit import RateLimitedLog
from executors_app.wire.protocol import CapabilityShortfall, Code, JournalKind

_INITIALIZE_SHARE: Final = 0.75
"""Share of the start's time limit for ``initialize``: a slower agent will not open a conversation in time."""
_SESSION_SETUP: Final = "session setup"
"""The step in which the conversation is opened or loaded."""
_LIMIT_HINT: Final = "; KANDEV_START_TIMEOUT sets this limit"
_LOAD_LIMIT_HINT: Final = "; KANDEV_START_TIMEOUT, or load_timeout of its agent type, sets this limit"
_SETTING_TIMEOUT: Final = 10.0
"""Seconds for selecting the model, and again for the mode and for each other setting."""
_CHANGE_TIMEOUT: Final = 20.0
"""Seconds for the agent's answer to the change of a setting."""
_TURN_ENDED: Final = "_session/turn_ended"
"""The notification, an extension, with which an agent announces the end of a turn that it began itself."""
_SAYS_BUSY: Final = re.compile(
    r"already (?:processing|prompting|in progress|running a (?:prompt|turn))"
    r"|(?:prompt|turn|request|query) (?:is )?(?:already |still |currently )?(?:in progress|running|active)"
    r"|(?:session|agent|conversation) is (?:currently |still )?busy|another (?:prompt|turn|request) is",
    re.IGNORECASE,
)
"""How agents refuse a prompt while they work on something that they began themselves."""
_BUSY_WAIT: Final = 1.0
"""Seconds before such a prompt is sent again, doubled each time: the agent may only be ending its last turn."""
_BUSY_LIMIT: Final = 3.0
"""Seconds after which the prompt is given back, because the agent works on something of its own."""
STEERING_METHOD: Final = "_session/steering"
_STEERING_META: Final = {"steering": {"idleBehavior": "promptRequired"}}
_TAKEN: Final = frozenset({"injected", "startedNewTurn"})
"""Outcomes after which the agent has the text; the second is that of agents that do not know *promptRequired*."""
_NOT_BEGUN: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
"""Errors of an agent that has not even read the text. After any other one it may have it."""
_FAILED_GRACE: Final = 0.5
_DELETE_TIMEOUT: Final = 5.0
"""Seconds for the end of an open turn and the answer to ``session/delete``."""
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds for the answer to ``session/close``, which is not sent by a stop with less grace than that."""
_END_TIMEOUT: Final = 1.0
"""Seconds in which an idle agent may end by itself before it gets TERM."""
_OUTPUT_DRAIN_TIMEOUT: Final = 5.0
"""Seconds that a stop waits for the journal to accept the agent's last lines."""


@contextlib.contextmanager
def _not_counting(limit: asyncio.Timeout) -> Iterator[None]:
    """Suspend a time limit for the block, which has one of its own; what was left of it is left afterwards."""
    ends, begin = limit.when(), time.monotonic()
    limit.reschedule(None)
    try:
        yield
    finally:
        if ends is not None:
            ends += time.monotonic() - begin
        limit.reschedule(ends)


def create(host: Host, marker: Mapping[str, str]) -> Driver:
    """Return a driver for successive processes of one agent; ``marker`` is added to their environment."""
    return AcpDriver(host, marker)


@dataclass(slots=True)
class _Agent:
    """One agent process and the connection to it."""

    process: AgentProcess
    connection: JsonRpcConnection
    exited: asyncio.Event
    exit_watcher: asyncio.Task[None] | None = None


class AcpDriver:
    """See ``Driver``."""

    def __init__(self, host: Host, marker: Mapping[str, str]):
        self._host, self._marker = host, marker
        self._agent: _Agent | None = None
        self._agent_info: acp_session_setup.AgentInfo | None = None
        self._trial, self._login = acp_session_setup.CapabilityTrial(), acp_session_setup.Login(None)
        self._settings = AcpSettings(host.record)
        self._recorder = self._new_recorder()
        self._step, self._step_timeout = "initialize", 0.0
        self._cwd = ""
        self._unknown_notifications = RateLimitedLog(host.record, "notifications", level="debug")

    def _new_recorder(self) -> UpdateRecorder:
        return UpdateRecorder(self._host.record, self._settings.handle_update, self._handle_other_notification)

    @property
    def _updates(self) -> UpdateRouter:
        return self._recorder.router

    @property
    def _turn(self) -> PromptedTurn | None:
        return self._recorder.turn

    @property
    def _conversation_id(self) -> str | None:
        return self._updates.conversation_id

    @property
    def pid(self) -> int | None:
        """The agent's pid while its process is running."""
        alive = self._agent is not None and self._agent.process.is_running
        if self._agent and alive:
            return self._agent.process.pid
        return None

    # -- start

    async def start(self, request: StartRequest) -> StartResult:
        """Start the agent and open or restore the conversation; raises StartFailed, which leaves no process."""
        if self.pid is not None:
            raise StartFailed(Code.ALREADY_RUNNING, "this agent runs already")
        self._agent = None
        self._settings = AcpSettings(self._host.record)
        self._recorder = self._new_recorder()
        self._agent_info, self._trial, self._step_timeout = None, acp_session_setup.CapabilityTrial(), request.timeout
        self._login, self._cwd = acp_session_setup.Login(request.login), request.cwd
        try:
            async with asyncio.timeout(request.handshake_limit) as limit:
                return await self._start(request, limit)
        except StartFailed as error:
            await self.stop(_FAILED_GRACE)
            error.told = self._failure_details()
            raise
        except (TimeoutError, SpawnFailed, AgentGone, PipeStuck, RpcError) as error:
            exit_code = await self.stop(_FAILED_GRACE)
            failed = self._start_failed(error, request, exit_code)
            shortfall = CapabilityShortfall.ENDED
            if isinstance(error, TimeoutError):
                shortfall = CapabilityShortfall.NO_ANSWER
            self._trial.failed(shortfall, failed.message)
            failed.told = self._failure_details()
            raise failed from error
        except BaseException:
            await self.stop(0)
            raise

    async def _start(self, request: StartRequest, limit: asyncio.Timeout) -> StartResult:
        timings: dict[str, float] = {}
        with acp_session_setup.timed_step(timings, "spawn"):
            agent = self._agent = await self._spawn(request)
        with acp_session_setup.timed_step(timings, "initialize"):
            self._step, self._step_timeout = "initialize", request.timeout * _INITIALIZE_SHARE
            async with asyncio.timeout(self._step_timeout):
                peer = self._agent_info = await acp_session_setup.initialize(agent.connection)
            self._recorder.agent_name = peer.agent.get("name", "")
            self._step_timeout = request.handshake_limit
        request.report_left_out(self._host.record, peer.mcp_transports)
        self._step = "login"
        with _not_counting(limit):
            await self._login.carry_out(agent.connection, peer)
        with acp_session_setup.timed_step(timings, "session"):
            self._step = _SESSION_SETUP
            opened = await acp_session_setup.open_conversation(
                agent.connection, request, peer, self._trial, self._updates
            )
            await self._host.keep_token(opened.conversation_id)
        self._settings.open(opened.settings)
        await self._apply_settings(agent.connection, request, peer)
        self._settings.publish()
        return StartResult(
            outcome=opened.outcome,
            resume_token=opened.conversation_id,
            agent=peer.agent,
            capabilities=peer.capabilities,
            replayed=opened.replay.messages,
            replayed_user_texts=opened.replay.user_texts,
            replayed_user_digests=opened.replay.user_digests,
            listed=opened.listed,
            timings=timings,
            unkept=self._trial.unkept,
            auth=peer.auth,
            login=self._login.outcome,
        )

    async def _spawn(self, request: StartRequest) -> _Agent:
        record = self._host.record
        process = await AgentProcess.spawn(request.argv, request.env, request.cwd, self._marker, record)
        wire = JsonRpcConnection(
            process,
            on_notification=self._recorder.handle_notification,
            on_request=self._handle_request,
            room=self._host.wait_for_room,
            record=record,
        )
        agent = _Agent(process, wire, asyncio.Event())
        wire.start_reading()
        agent.exit_watcher = asyncio.create_task(self._watch_exit(agent), name="agent's burial")
        return agent

    async def _apply_settings(
        self, wire: JsonRpcConnection, request: StartRequest, peer: acp_session_setup.AgentInfo
    ) -> None:
        self._step = "settings"
        limit = min(_SETTING_TIMEOUT, request.timeout)
        await self._settings.apply(wire, self._conversation_id or "", request, limit=limit)
        if request.additional_directories and not peer.directories:
            text = "the agent does not support additional directories, so none were passed to it"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={})

    async def change_setting(self, setting_id: str, value: str | bool, sent: Callable[[], Any]) -> None:
        """Change a setting, also during a turn; see ``SupportsSettings``."""
        agent = self._agent
        if agent is None or agent.exited.is_set() or self._conversation_id is None:
            raise AgentGone
        try:
            await self._settings.change(
                agent.connection, self._conversation_id, setting_id, value, limit=_CHANGE_TIMEOUT, sent=sent
            )
        except PipeStuck as error:
            raise SettingRefused(Code.SETTING_REFUSED, str(error)) from error

    def _failure_details(self) -> dict[str, Any]:
        """Return the value of ``StartFailed.told``."""
        details: dict[str, Any] = {}
        peer = self._agent_info
        if peer is not None:
            details = {"agent": dict(peer.agent), "capabilities": peer.capabilities, "auth": peer.auth}
            details["unkept"] = self._trial.unkept
        if self._login.outcome:
            details["login"] = self._login.outcome
        return details

    def _start_failed(self, error: Exception, request: StartRequest, exit_code: int | None) -> StartFailed:
        if isinstance(error, RpcError):
            return acp_session_setup.start_failure(error)
        if isinstance(error, AgentGone):
            stderr, how = "", f"with code {exit_code}"
            if self._agent:
                stderr, how = self._agent.process.output_tail(), self._agent.process.exit_description()
            return agent_ended(f"the agent ended {how} before completing {self._step}", stderr)
        if isinstance(error, SpawnFailed):
            return StartFailed(error.code, str(error), permanent=error.permanent)
        late = f"the agent did not complete {self._step} within {self._step_timeout:g} s{_LIMIT_HINT}"
        if request.strategy == "native" and self._step == _SESSION_SETUP:
            late = f"the agent did not load its conversation within {self._step_timeout:g} s{_LOAD_LIMIT_HINT}"
        return StartFailed(Code.START_TIMEOUT, late)

    # -- turns

    async def prompt(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], delivered: Any, kind: str = "user"
    ) -> str:
        """Run one turn to its end and return the stop reason ("cancelled" after a cancel); raises TurnFailed."""
        agent = self._agent
        if agent is None or agent.exited.is_set() or self._conversation_id is None:
            raise TurnFailed(Code.NOT_RUNNING, "no agent is running")
        params = {"sessionId": self._conversation_id, "prompt": self._blocks(text, attachments), **_prompt_meta(kind)}
        turn = self._recorder.turn = PromptedTurn(text)
        self._updates.prompted()
        try:
            answer = await self._call_when_free(agent, turn, params, delivered)
        except RpcError as error:
            # ACP asks for the stop reason *cancelled*, but the aborted request may surface as an error instead.
            if turn.cancelled:
                return "cancelled"
            if error.code == acp_session_setup.AUTH_REQUIRED:
                raise TurnFailed(Code.AUTH_REQUIRED, error.text) from error
            if not turn.has_begun and _SAYS_BUSY.search(error.text):
                raise TurnFailed(Code.AGENT_BUSY, error.text) from error
            if not turn.has_begun and acp_session_setup.reports_loss(error, params["sessionId"]):
                raise TurnFailed(Code.CONVERSATION_CLOSED, self._closed_sentence(error.text)) from error
            raise TurnFailed(failure_code(error.text), error.text) from error
        except PipeStuck as error:
            # Part of the prompt was written. It must never be completed, and the agent would read any further
            # message as its rest.
            await agent.process.stop(0)
            raise TurnFailed("agent_stuck", str(error)) from error
        except AgentGone as error:
            await agent.exited.wait()  # the exit code is known only then
            message = f"the agent ended {agent.process.exit_description()} in the middle of a turn"
            raise TurnFailed(Code.AGENT_EXITED, message) from error
        finally:
            turn.ended.set()
            self._recorder.turn = None
        reason = self._stop_reason(answer)
        if turn.error and reason in ("end_turn", BLANK_STOP_REASON) and not turn.cancelled:
            raise TurnFailed(failure_code(turn.error), turn.error)
        return reason

    @property
    def steers(self) -> bool:
        """Whether the agent has announced that it takes a text into a running turn."""
        return self._agent_info is not None and self._agent_info.steers

    async def steer(self, text: str, attachments: Sequence[Mapping[str, Any]], sent: Callable[[], Any]) -> None:
        """Hand a text to the running turn; see ``SupportsSteering``.

        *promptRequired* asks the agent to leave the text to us if no turn runs, instead of beginning one with it.
        """
        agent = self._agent
        if agent is None or agent.exited.is_set() or self._conversation_id is None:
            raise SteeringRefused("no agent is running")
        try:
            blocks = self._blocks(text, attachments)
        except TurnFailed as error:
            raise SteeringRefused(error.message) from error
        params = {"sessionId": self._conversation_id, "prompt": blocks, "_meta": _STEERING_META}
        try:
            answer = object_of(await agent.connection.call(STEERING_METHOD, params, sent=sent))
        except RpcError as error:
            if error.code in _NOT_BEGUN:
                raise SteeringRefused(clean_text(error.text, REASON_LIMIT)) from error
            raise
        except PipeStuck:
            await agent.process.stop(0)  # part of the text was written: it must never be completed
            raise
        if answer.get("outcome") == "promptRequired":
            raise SteeringRefused("no turn was running")
        if answer.get("outcome") not in _TAKEN:
            raise ValueError(f"the agent answered {clean_text(str(answer.get('outcome')), REASON_LIMIT)!r}")

    def _closed_sentence(self, reason: str) -> str:
        restores = self._agent_info is not None and (self._agent_info.load or self._agent_info.resume)
        if restores:
            then = "to restore the conversation"
        else:
            then = "but it does not offer to restore a conversation"
        return (
            f"The agent does not have its conversation open any more: {reason.rstrip('.')}. It is restarted, {then}. "
            "Send the prompt again afterwards."
        )

    async def _call_when_free(self, agent: _Agent, turn: PromptedTurn, params: dict[str, Any], delivered: Any) -> Any:
        """Send the prompt; if the agent refuses it because it still works on something else, repeat it for a moment.

        Such a refusal means that the agent has not begun with this prompt. The same words after a tool call, or after
        output for a while, are another error: the prompt would run twice.
        """
        wait, refused_at = _BUSY_WAIT, time.monotonic()
        while True:
            turn.sent_at, turn.has_begun = time.monotonic(), False
            try:
                return await agent.connection.call("session/prompt", params, sent=delivered)
            except RpcError as error:
                waited = time.monotonic() - refused_at
                if turn.cancelled or turn.has_begun or not _SAYS_BUSY.search(error.text) or waited + wait > _BUSY_LIMIT:
                    raise
                if wait == _BUSY_WAIT:
                    text = "the agent still works on something else; the prompt is repeated"
                    self._host.record(JournalKind.LOG, level="info", text=text, data={"said": error.text[:500]})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await turn.interrupted.wait()
                wait *= 2
                if turn.cancelled:
                    raise

    def _blocks(self, text: str, attachments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the prompt as content blocks; raises TurnFailed for files that the agent does not take."""
        taken = frozenset[str]()
        if self._agent_info:
            taken = self._agent_info.prompt_kinds
        return [{"type": "text", "text": text}, *fit_blocks(attachments, taken)]

    def _stop_reason(self, answer: Any) -> str:
        result = object_of(answer)
        if usage := usage_of_answer(result):
            self._host.record(JournalKind.USAGE, usage=usage)
        return stop_reason_text(result.get("stopReason"))

    async def cancel(self) -> None:
        """Ask the agent to end the active turn; an error that it answers afterwards counts as *cancelled*."""
        if self._turn is None:
            return
        self._turn.cancelled = True
        self._turn.interrupted.set()
        await self._notify_cancel()

    async def cancel_own_work(self) -> None:
        """Ask the agent to end what it does without a prompt; see ``SupportsOwnWork``."""
        if self._turn is None:
            await self._notify_cancel()

    async def _notify_cancel(self) -> None:
        agent = self._agent
        if agent is None or agent.exited.is_set() or self._conversation_id is None:
            return
        with contextlib.suppress(AgentGone, PipeStuck):
            await agent.connection.notify("session/cancel", {"sessionId": self._conversation_id})

    # -- notifications and requests of the agent

    def _handle_other_notification(self, method: str, params: Any) -> None:
        if method == QUESTION_COMPLETED and complete_question(self._host, params):
            return
        if method == _TURN_ENDED and object_of(params).get("sessionId") in (None, self._conversation_id):
            self._record_end_of_own_turn(object_of(params))
            return
        self._unknown_notifications.put(
            f"the agent sent {method}".encode(),
            params=encode_message(_without_session_id(params))[:500].decode("utf-8", "replace"),
        )

    def _record_end_of_own_turn(self, params: Mapping[str, Any]) -> None:
        """Record that a turn has ended which the agent began; a prompt's turn ends with the answer to the prompt."""
        if self._turn is not None:
            return
        reason = params.get("stopReason")
        body: dict[str, Any] = {}
        if isinstance(reason, str) and reason.strip():
            body["stop_reason"] = clean_text(reason, REASON_LIMIT)
        self._host.record(JournalKind.AGENT_TURN_ENDED, **body)

    def _handle_request(self, method: str, params: Any) -> Awaitable[Any]:
        return answer_request(self._host, method, params, self._asking_sub_agent)

    def _asking_sub_agent(self, params: Any) -> str:
        """Return the name of the sub-agent that asks; empty for the agent itself."""
        session_id = object_of(params).get("sessionId")
        is_own = session_id is None or self._conversation_id in (None, session_id)
        if is_own:
            return ""
        return self._updates.name_sub_agent(session_id)

    # -- the end

    async def stop(self, grace: float) -> int | None:
        """End the whole process tree (TERM, after ``grace`` seconds KILL); returns the exit code.

        An idle agent may first end by itself, because some save the conversation only at the end of their input.
        """
        agent = self._agent
        if agent is None:
            return None
        if grace >= _CLOSE_TIMEOUT:
            await self._close_conversation(agent)
            await self._end_input(agent)
        exit_code = await agent.process.stop(grace)
        # Closing the connection stops reading, so the journal first gets time to accept the last lines. The wait is
        # limited, because a full journal would never accept them.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_DRAIN_TIMEOUT):
                await agent.exited.wait()
        await agent.connection.close()
        await agent.exited.wait()
        return exit_code

    async def _close_conversation(self, agent: _Agent) -> None:
        """Let the agent finish with its conversation, if it can; it stays resumable.

        Not during a turn: closing would end it as *cancelled*, but a stop interrupts it.
        """
        closes = self._agent_info is not None and self._agent_info.closes
        if not closes or self._conversation_id is None or self._turn is not None or agent.exited.is_set():
            return
        with contextlib.suppress(RpcError, AgentGone, PipeStuck, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await agent.connection.call("session/close", {"sessionId": self._conversation_id})

    async def _end_input(self, agent: _Agent) -> None:
        """Let an idle agent end as at the end of its input. In a turn it might finish what the stop interrupts."""
        if self._turn is None and not agent.exited.is_set():
            await agent.process.end_input(_END_TIMEOUT)

    async def delete_conversation(self) -> DeletionResult:
        """Delete the agent's own transcript; see ``SupportsDeletion``."""
        agent, conversation_id, peer = self._agent, self._conversation_id, self._agent_info
        if agent is None or agent.exited.is_set() or conversation_id is None:
            return DeletionResult("no agent is running")
        if peer is None or not peer.deletes:
            return DeletionResult("the agent does not offer to delete its transcript")
        # An absent conversation proves a deletion only if it was listed before.
        was_listed = peer.lists and await self._is_listed(agent, conversation_id)
        if reason := await self._request_deletion(agent, conversation_id):
            return DeletionResult(reason)
        self._updates.conversation_id = None  # it is not closed after that
        if not was_listed:
            return DeletionResult(is_confirmed=False)
        still_listed = await self._is_listed(agent, conversation_id)
        if still_listed:
            return DeletionResult("the agent reports the deletion, but still lists the conversation")
        return DeletionResult(is_confirmed=still_listed is False)

    async def _request_deletion(self, agent: _Agent, conversation_id: str) -> str:
        """End the open turn and have the agent delete the conversation; return why it did not, or an empty text."""
        try:
            async with asyncio.timeout(_DELETE_TIMEOUT):
                if self._turn is not None:  # otherwise the agent might write the transcript again
                    turn = self._turn
                    await self.cancel()
                    await turn.ended.wait()
                await agent.connection.call("session/delete", {"sessionId": conversation_id})
        except RpcError as error:
            return clean_text(error.text, REASON_LIMIT)
        except TimeoutError:
            return f"the agent did not answer within {_DELETE_TIMEOUT:g} s"
        except (AgentGone, PipeStuck):
            return "the agent ended first"
        return ""

    async def _is_listed(self, agent: _Agent, conversation_id: str) -> bool | None:
        return await acp_session_setup.is_listed(agent.connection, self._cwd, conversation_id, empty_is_known=True)

    async def _watch_exit(self, agent: _Agent) -> None:
        """Wait until all output is handled, end the agent if it still runs, and report its exit."""
        # The exit is reported after the output, so that no line of the agent follows its exit in the journal.
        await agent.connection.closed.wait()
        exit_code = await agent.process.finish()
        agent.exited.set()
        if self._turn is not None:
            self._turn.interrupted.set()
        self._host.agent_gone(exit_code)
        await agent.connection.close()


def _prompt_meta(kind: str) -> dict[str, Any]:
    """Return what marks a prompt that Kandev wrote, so that an agent can tell it from its user's; empty for those."""
    if kind == "user":
        return {}
    return {"_meta": {"kandev": {"prompt_kind": kind, "is_continue": kind == "continue"}}}


def _without_session_id(params: Any) -> Any:
    """Return the params without the session id, which is a credential whichever conversation it names."""
    if isinstance(params, dict):
        return {name: value for name, value in params.items() if name != "sessionId"}
    return params
