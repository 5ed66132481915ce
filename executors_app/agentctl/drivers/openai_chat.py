"""The driver for OpenAI's chat completions API, which many providers serve: the agent is a model behind a URL.

There is no process. The provider stores no conversation, so agentctl does (``Host.conversations``): the user's text
before it is sent, the answer before its turn ends. The answer of a completed turn is therefore never lost, and after a
kill in the middle of a turn the conversation ends with its prompt.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from executors_app.agentctl.conversation_store import (
    AGENT,
    USER,
    WITHDRAWN,
    Conversation,
    ConversationEntry,
    ConversationGone,
)
from executors_app.agentctl.drivers import (
    Driver,
    Host,
    StartFailed,
    StartRequest,
    StartResult,
    TurnFailed,
    openai_chat_api,
)
from executors_app.agentctl.drivers.acp_updates import USER_TEXT_BYTES
from executors_app.agentctl.drivers.failures import BLANK_STOP_REASON
from executors_app.agentctl.drivers.json_rpc import encode_message
from executors_app.agentctl.drivers.openai_chat_api import ChatProvider, build_messages, completion_request
from executors_app.agentctl.drivers.prompt_content import prompt_text
from executors_app.wire.log_rate_limit import RateLimitedLog
from executors_app.wire.protocol import Code, JournalKind
from executors_app.wire.replayed_texts import MAX_DIGESTS, MAX_TEXTS, text_digest

CONNECT_TIMEOUT: Final = 30.0
"""Seconds for connecting to the provider."""
SILENCE_TIMEOUT: Final = 300.0
"""Seconds without data after which an answer counts as lost: models may think for minutes before they send text."""
ANSWER_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of one answer; a longer one is cut off."""
_ERROR_BODY_LIMIT: Final = 64 * 1024
_EVENT_STREAM_TYPE: Final = "text/event-stream"


def create(host: Host, marker: Mapping[str, str]) -> Driver:
    """Return a driver for successive conversations; ``marker`` is unused, because there is no process."""
    return ChatDriver(host)


@dataclass(slots=True)
class _Turn:
    texts: list[str] = field(default_factory=list)
    size: int = 0
    answered: bool = False
    stop_reason: str = ""
    cancelled: bool = False
    task: asyncio.Task[str] | None = None


@dataclass(frozen=True, slots=True)
class _OpenChat:
    provider: ChatProvider
    conversation: Conversation


class ChatDriver:
    """See ``Driver``."""

    def __init__(self, host: Host):
        self._host = host
        self._chat: _OpenChat | None = None
        self._turn: _Turn | None = None
        self._unreadable = RateLimitedLog(host.record, "provider", level="warning")

    @property
    def pid(self) -> int | None:
        """Always None: there is no process."""
        return None

    # -- start

    async def start(self, request: StartRequest) -> StartResult:
        """Open the token's conversation or create one; the provider is not contacted before the first prompt."""
        if self._chat is not None:
            raise StartFailed(Code.ALREADY_RUNNING, "this agent runs already")
        begin = time.monotonic()
        try:
            provider = ChatProvider.of(request.env, request.model)
        except ValueError as error:
            raise StartFailed(Code.HANDSHAKE_FAILED, str(error), permanent=True) from error
        conversation = self._open(request)
        request.report_left_out(self._host.record, None)
        try:
            await self._host.keep_token(conversation.id)
        except BaseException:
            conversation.close()
            raise
        self._chat = _OpenChat(provider, conversation)
        return _start_result(request, provider, conversation, round((time.monotonic() - begin) * 1000, 1))

    def _open(self, request: StartRequest) -> Conversation:
        try:
            if request.strategy != "native":
                return self._host.conversations.create()
            conversation = self._host.conversations.open(request.resume_token or "")
        except ConversationGone:
            message = "the conversation is gone: it is not stored for this session"
            raise StartFailed(Code.TOKEN_REJECTED, message, token_valid=False) from None
        except OSError as error:
            message = f"the stored conversation cannot be read: {error.strerror}"
            raise StartFailed(_disk_error_code(error), message) from error
        if conversation.lost:
            text = "part of the stored conversation could not be read and was left out"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={"bytes": conversation.lost})
        return conversation

    # -- turns

    async def prompt(
        self, message_id: str, text: str, attachments: Sequence[Mapping[str, Any]], delivered: Any, kind: str = "user"
    ) -> str:
        """Run one turn to its end and return the stop reason ("cancelled" after a cancel); raises TurnFailed."""
        chat = self._chat
        if chat is None:
            raise TurnFailed(Code.NOT_RUNNING, "no agent is running")
        text = prompt_text(text, attachments)
        # On disk before it counts as delivered, and before the provider gets it: a delivered prompt is never lost.
        _append_entry(chat, ConversationEntry(message_id, USER, text))
        if inspect.isawaitable(acknowledged := delivered()):
            await acknowledged
        turn = self._turn = _Turn()
        turn.task = asyncio.create_task(self._run(chat, message_id, turn), name="chat completion")
        try:
            return await turn.task
        except asyncio.CancelledError:
            if turn.cancelled:
                return "cancelled"
            # ``stop`` cancels only the request; anything else cancels the task of this turn itself.
            if self._chat is None and not _is_task_cancelled():
                raise TurnFailed(Code.AGENT_EXITED, "the agent was stopped in the middle of a turn") from None
            raise
        finally:
            self._turn = None

    async def _run(self, chat: _OpenChat, message_id: str, turn: _Turn) -> str:
        """Store the answer and return its stop reason; of an answer that ends early, the received part is stored."""
        try:
            reason = await self._answer(chat, turn)
        except asyncio.CancelledError:
            self._keep_half(chat, message_id, turn)
            raise
        except TurnFailed as error:
            self._keep_half(chat, message_id, turn, withdraw=True)
            message = chat.provider.without_key(error.message)
            raise TurnFailed(error.code, message, retry_after=error.retry_after) from error
        if turn.texts:
            _append_entry(chat, ConversationEntry(message_id, AGENT, "".join(turn.texts)))
        return reason

    async def cancel(self) -> None:
        """Interrupt the answer; the part that was received stays in the conversation."""
        if self._turn is not None and self._turn.task is not None:
            self._turn.cancelled = True
            self._turn.task.cancel()

    async def stop(self, grace: float) -> int | None:
        """Interrupt an open answer and close the conversation; there is no process to end."""
        chat, self._chat = self._chat, None
        if chat is None:
            return None
        task = None
        if self._turn:
            task = self._turn.task
        self._host.agent_gone(0)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        chat.conversation.close()
        return 0

    def _keep_half(self, chat: _OpenChat, message_id: str, turn: _Turn, *, withdraw: bool = False) -> None:
        """Store the received part of an answer; without one, ``withdraw`` the prompt from the conversation.

        A full disk is only logged: the turn is failing or ending already.
        """
        try:
            if turn.texts:
                _append_entry(chat, ConversationEntry(message_id, AGENT, "".join(turn.texts), cut=True))
            elif withdraw:
                _append_entry(chat, ConversationEntry(message_id, WITHDRAWN, ""))
        except TurnFailed as error:
            self._host.record(JournalKind.LOG, level="error", text=error.message, data={"code": error.code})

    # -- the answer

    async def _answer(self, chat: _OpenChat, turn: _Turn) -> str:
        messages, left_out = build_messages(chat.conversation.entries)
        if left_out:
            text = f"the {left_out} oldest messages of the conversation were left out: it is too long"
            self._host.record(JournalKind.LOG, level="warning", text=text, data={})
        provider = chat.provider
        limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT, sock_read=SILENCE_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=limits, cookie_jar=aiohttp.DummyCookieJar()) as http,
                http.post(
                    provider.url,
                    # As a file, because aiohttp warns about large bytes objects.
                    data=io.BytesIO(encode_message(completion_request(provider.model, messages))),
                    headers=provider.headers,
                    proxy=provider.proxy,
                    allow_redirects=False,  # the key must reach no other address
                ) as response,
            ):
                return await self._read(response, turn)
        except aiohttp.ClientSSLError as error:
            raise TurnFailed("agent_error", f"the provider's certificate is not valid: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            if turn.answered:
                raise TurnFailed(
                    openai_chat_api.CONNECTION_LOST, f"the provider's answer was interrupted: {reason}"
                ) from error
            raise TurnFailed(openai_chat_api.UNREACHABLE, f"the provider cannot be reached: {reason}") from error

    async def _read(self, response: aiohttp.ClientResponse, turn: _Turn) -> str:
        turn.answered = True
        if response.status != 200:
            raise openai_chat_api.failure_of_response(
                response.status, response.headers, await _read_bounded(response, _ERROR_BODY_LIMIT)
            )
        if response.content_type != _EVENT_STREAM_TYPE:
            self._handle_chunk(await _read_bounded(response, ANSWER_LIMIT), turn)
            return _stop_reason_of(turn)
        events = openai_chat_api.ServerSentEvents()
        while True:
            await self._host.wait_for_room()
            received = await response.content.readany()
            for event in events.feed(received) if received else events.end():
                if event == openai_chat_api.DONE:
                    return turn.stop_reason or BLANK_STOP_REASON
                self._handle_chunk(event, turn)
                if turn.size > ANSWER_LIMIT:
                    text = "the answer was cut off: it is too long"
                    self._host.record(JournalKind.LOG, level="warning", text=text, data={"bytes": turn.size})
                    return "max_tokens"
            if not received:  # the stream ended without [DONE]
                return _stop_reason_of(turn)

    def _handle_chunk(self, data: bytes, turn: _Turn) -> None:
        piece = openai_chat_api.parse_chunk(data)
        if piece is None:
            self._unreadable.put(b"an event that is no chat completion was left out", bytes=len(data))
            return
        if piece.thought:
            self._host.record(JournalKind.MESSAGE_THOUGHT, text=piece.thought)
        if piece.text:
            turn.texts.append(piece.text)
            self._host.record(JournalKind.MESSAGE_AGENT, text=piece.text)
        if piece.usage:
            self._host.record(JournalKind.USAGE, usage=dict(piece.usage))
        turn.size += len(piece.text.encode()) + len(piece.thought.encode())
        turn.stop_reason = turn.stop_reason or piece.stop_reason
        if piece.error is not None:
            raise openai_chat_api.failure_in_stream(piece.error)


def _start_result(
    request: StartRequest, provider: ChatProvider, conversation: Conversation, milliseconds: float
) -> StartResult:
    entries = conversation.entries
    users = [entry.text for entry in entries if entry.role == USER]
    native = request.strategy == "native"
    return StartResult(
        outcome="loaded" if native else "created",
        resume_token=conversation.id,
        agent={"name": provider.model, "version": ""},
        capabilities={
            "load_session": True,
            "resume_session": False,
            "history": True,
            "protocol": "chat-completions",
            "prompt": [],
        },
        replayed=len(entries),
        replayed_user_texts=[text.encode()[:USER_TEXT_BYTES].decode("utf-8", "ignore") for text in users[-MAX_TEXTS:]],
        replayed_user_digests=[text_digest(text) for text in users[-MAX_DIGESTS:]],
        timings={"session": milliseconds},
    )


def _append_entry(chat: _OpenChat, entry: ConversationEntry) -> None:
    """Append an entry, on disk when this returns; raises TurnFailed."""
    try:
        chat.conversation.append(entry)
    except OSError as error:
        message = f"the conversation could not be stored: {error.strerror}"
        raise TurnFailed(_disk_error_code(error), message) from error


def _disk_error_code(error: OSError) -> Code:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Code.DISK_FULL
    return Code.DISK_FAILING


def _stop_reason_of(turn: _Turn) -> str:
    if not turn.stop_reason:
        raise TurnFailed(openai_chat_api.CONNECTION_LOST, "the provider's answer was incomplete")
    return turn.stop_reason


def _is_task_cancelled() -> bool:
    """Whether the calling task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body, or its first ``limit`` bytes."""
    parts, size = [], 0
    while size < limit and (part := await response.content.read(64 * 1024)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:limit]
