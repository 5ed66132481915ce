"""The first messages with an ACP agent: who it is, and the conversation it opens or takes up again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from executors_app.agentctl.drivers import StartFailed, StartRequest
from executors_app.agentctl.drivers.acp_listing import is_listed
from executors_app.agentctl.drivers.acp_updates import Replay
from executors_app.agentctl.drivers.acp_wire import METHOD_NOT_FOUND, RpcError, Wire
from executors_app.agentctl.drivers.cli.told import WANTS_LOGIN
from executors_app.agentctl.protocol import Code, Shortfall

PROTOCOL_VERSION: Final = 1
AUTH_REQUIRED: Final = -32000
RESOURCE_NOT_FOUND: Final = -32002
_SHORTEST_ID: Final = 6
"""A shorter id may be any word of an error."""
_INITIALIZE: Final[dict[str, Any]] = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "kandev", "version": "1"},
}

Outcome = Literal["resumed", "loaded", "created"]
_LOAD: Final[tuple[str, str, Outcome]] = ("load_session", "session/load", "loaded")
_RESUME: Final[tuple[str, str, Outcome]] = ("resume_session", "session/resume", "resumed")
_SAID_LIMIT: Final = 500


@dataclass(frozen=True, slots=True)
class Peer:
    """What the agent told of itself; claims, until they are tried."""

    agent: Mapping[str, str]
    load: bool
    resume: bool
    lists: bool
    """It offers ``session/list``."""
    directories: bool
    """It takes directories beside its cwd."""
    prompt_kinds: frozenset[str]
    """Content blocks it takes beside text and resource links."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """As ``Started.capabilities``. Every ACP agent takes a history as text in a prompt."""
        protocol = f"acp/{PROTOCOL_VERSION}"
        return {"load_session": self.load, "resume_session": self.resume, "history": True, "protocol": protocol}


@dataclass(slots=True)
class Trial:
    """What becomes of the agent's claims when they are put to the test."""

    asked: str = ""
    """The capability that was asked for and has not been answered yet."""
    unkept: dict[str, dict[str, str]] = field(default_factory=dict)
    """As ``Started.unkept``."""

    def failed(self, how: Shortfall, said: str) -> None:
        """What was asked for last did not come; nothing where nothing was asked for."""
        if self.asked:
            self.unkept[self.asked] = {"how": how.value, "said": said[:_SAID_LIMIT]}
            self.asked = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open conversation."""

    outcome: Outcome
    conversation_id: str
    settings: Mapping[str, Any]
    """The agent's answer: the models and options it offers."""


async def initialize(wire: Wire) -> Peer:
    """Shake hands; StartFailed where that comes to nothing."""
    try:
        answer = await wire.call("initialize", _INITIALIZE)
    except RpcError as error:
        raise refused(error) from error
    version = answer.get("protocolVersion") if isinstance(answer, dict) else None
    if version != PROTOCOL_VERSION:
        raise StartFailed(
            Code.HANDSHAKE_FAILED,
            f"the agent speaks version {version!r} of ACP, not {PROTOCOL_VERSION}",
            permanent=True,
        )
    claims = _mapping(answer.get("agentCapabilities"))
    of_sessions = _mapping(claims.get("sessionCapabilities"))
    info = _mapping(answer.get("agentInfo"))
    takes = _mapping(claims.get("promptCapabilities"))
    kinds = {"image": takes.get("image"), "audio": takes.get("audio"), "resource": takes.get("embeddedContext")}
    return Peer(
        agent={"name": str(info.get("name") or ""), "version": str(info.get("version") or "")},
        load=claims.get("loadSession") is True,
        resume=of_sessions.get("resume") not in (None, False),
        lists=of_sessions.get("list") not in (None, False),
        directories=of_sessions.get("additionalDirectories") not in (None, False),
        prompt_kinds=frozenset(kind for kind, taken in kinds.items() if taken is True),
    )


async def open_conversation(
    wire: Wire, request: StartRequest, peer: Peer, trial: Trial, replaying: Callable[[Replay | None], None]
) -> Opened:
    """Restore the conversation of the token (``native``), or begin a new one; StartFailed.

    ``trial`` is told what becomes of the agent's claims. ``replaying`` is told where replayed updates
    go, and with None that the replay is over. A conversation that cannot be restored is never replaced
    by a new one here.
    """
    if request.strategy != "native":
        return await _create(wire, request, peer)
    if not request.resume_token:
        raise StartFailed(Code.VALIDATION_ERROR, "a native resume wants a token", permanent=True)
    if request.fork:
        raise StartFailed(Code.HANDSHAKE_FAILED, "conversations are not copied through ACP", permanent=True)
    for capability, method, outcome in _ways(peer, prefer_load=request.prefer_load):
        replaying(Replay())
        trial.asked = capability
        params = {**_place(request, peer), "sessionId": request.resume_token}
        try:
            answer = await wire.call(method, params, at_reply=lambda: replaying(None))
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:
                trial.failed(Shortfall.UNIMPLEMENTED, error.text)
                continue
            asks = peer.lists and error.code != AUTH_REQUIRED
            listed = await is_listed(wire, request.cwd, request.resume_token) if asks else None
            raise _not_restored(error, request, trial, listed=listed) from error
        trial.asked = ""
        return Opened(outcome, request.resume_token, _mapping(answer))
    raise StartFailed(
        Code.RESUME_UNSUPPORTED, "the agent offers no way to take a conversation up again", permanent=True
    )


def refused(error: RpcError) -> StartFailed:
    """The failed start that an error answer comes to."""
    if error.code == AUTH_REQUIRED or WANTS_LOGIN.search(error.text):
        return StartFailed(Code.AUTH_REQUIRED, f"the agent wants a login: {error.text}", permanent=True)
    return StartFailed(Code.HANDSHAKE_FAILED, f"the agent refused: {error.text}")


async def _create(wire: Wire, request: StartRequest, peer: Peer) -> Opened:
    try:
        answer = _mapping(await wire.call("session/new", _place(request, peer)))
    except RpcError as error:
        raise refused(error) from error
    conversation_id = answer.get("sessionId")
    if not isinstance(conversation_id, str) or not conversation_id:
        raise StartFailed(Code.HANDSHAKE_FAILED, "the agent gave its new conversation no id")
    return Opened("created", conversation_id, answer)


def _ways(peer: Peer, *, prefer_load: bool) -> Iterator[tuple[str, str, Outcome]]:
    """The offered ways to restore, the preferred one first."""
    offered = {_LOAD: peer.load, _RESUME: peer.resume}
    order = (_LOAD, _RESUME) if prefer_load else (_RESUME, _LOAD)
    return (way for way in order if offered[way])


def _not_restored(error: RpcError, request: StartRequest, trial: Trial, *, listed: bool | None) -> StartFailed:
    """Whether the conversation is gone, or only could not be opened: the error codes of agents differ.

    ACP's *resource not found* that names our conversation says *gone*, and so do the patterns of the agent type
    and the profile, unless the agent lists the conversation all the same. Without patterns, an error about
    what the agent does not list either says it.
    """
    patterns = request.gone_patterns
    says_gone = _names_ours(error, request.resume_token or "") or any(_matches(one, error.text) for one in patterns)
    if (says_gone and listed is not True) or (not patterns and listed is False):
        trial.asked = ""  # to say so is an answer
        beside = "" if says_gone else ", and does not list the conversation"
        return StartFailed(Code.TOKEN_REJECTED, f"the agent says: {error.text}{beside}", token_valid=False)
    if error.code == AUTH_REQUIRED:
        trial.asked = ""
    trial.failed(Shortfall.ERROR, error.text)
    return refused(error)


def _names_ours(error: RpcError, token: str) -> bool:
    """Whether it is *resource not found* about our conversation; asked here, because its id goes no further."""
    told = error.text + error.message
    return error.code == RESOURCE_NOT_FOUND and len(token) >= _SHORTEST_ID and token in told


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text, re.IGNORECASE) is not None
    except re.error:
        return False


def _place(request: StartRequest, peer: Peer) -> dict[str, Any]:
    """Where the conversation is and what it has at hand: told anew each time, for no agent keeps it."""
    place = {"cwd": request.cwd, "mcpServers": [_mcp_server(server) for server in request.mcp_servers]}
    more = list(request.additional_directories) if peer.directories else []
    return {**place, "additionalDirectories": more} if more else place


def _mcp_server(server: Mapping[str, Any]) -> dict[str, Any]:
    """An MCP server as ACP wants it; ``env`` and ``headers`` may also be given as plain objects."""
    remote = "url" in server
    defaults: dict[str, Any] = {"type": "http", "headers": []} if remote else {"args": [], "env": []}
    pairs = {
        key: [{"name": name, "value": str(value)} for name, value in server[key].items()]
        for key in ("env", "headers")
        if isinstance(server.get(key), Mapping)
    }
    return {**defaults, **server, **pairs}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
