"""The first messages with an ACP agent: who it is, and the conversation it opens or takes up again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from executors_app.agentctl.drivers import StartFailed, StartRequest
from executors_app.agentctl.drivers.acp_updates import Replay
from executors_app.agentctl.drivers.acp_wire import METHOD_NOT_FOUND, RpcError, Wire
from executors_app.agentctl.protocol import Code

PROTOCOL_VERSION: Final = 1
AUTH_REQUIRED: Final = -32000
_INITIALIZE: Final[dict[str, Any]] = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "kandev", "version": "1"},
}

Outcome = Literal["resumed", "loaded", "created"]
_LOAD: Final[tuple[str, Outcome]] = ("session/load", "loaded")
_RESUME: Final[tuple[str, Outcome]] = ("session/resume", "resumed")


@dataclass(frozen=True, slots=True)
class Peer:
    """What the agent told of itself; claims, until they are tried."""

    agent: Mapping[str, str]
    load: bool
    resume: bool
    prompt_kinds: frozenset[str]
    """Content blocks it takes beside text and resource links."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """As ``Started.capabilities``. Every ACP agent takes a history as text in a prompt."""
        protocol = f"acp/{PROTOCOL_VERSION}"
        return {"load_session": self.load, "resume_session": self.resume, "history": True, "protocol": protocol}


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
    info = _mapping(answer.get("agentInfo"))
    takes = _mapping(claims.get("promptCapabilities"))
    kinds = {"image": takes.get("image"), "audio": takes.get("audio"), "resource": takes.get("embeddedContext")}
    return Peer(
        agent={"name": str(info.get("name") or ""), "version": str(info.get("version") or "")},
        load=claims.get("loadSession") is True,
        resume=_mapping(claims.get("sessionCapabilities")).get("resume") not in (None, False),
        prompt_kinds=frozenset(kind for kind, taken in kinds.items() if taken is True),
    )


async def open_conversation(
    wire: Wire, request: StartRequest, peer: Peer, replaying: Callable[[Replay | None], None]
) -> Opened:
    """Restore the conversation of the token (``native``), or begin a new one; StartFailed.

    ``replaying`` is told where replayed updates go, and with None that the replay is over. A
    conversation that cannot be restored is never replaced by a new one here.
    """
    if request.strategy != "native":
        return await _create(wire, request)
    if not request.resume_token:
        raise StartFailed(Code.VALIDATION_ERROR, "a native resume wants a token", permanent=True)
    for method, outcome in _ways(peer, prefer_load=request.prefer_load):
        replaying(Replay())
        params = {**_place(request), "sessionId": request.resume_token}
        try:
            answer = await wire.call(method, params, at_reply=lambda: replaying(None))
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:
                continue
            raise _not_restored(error, request.gone_patterns) from error
        return Opened(outcome, request.resume_token, _mapping(answer))
    raise StartFailed(
        Code.RESUME_UNSUPPORTED, "the agent offers no way to take a conversation up again", permanent=True
    )


async def choose_model(wire: Wire, opened: Opened, model: str) -> bool:
    """Select a model if the agent offers it under that id or name; whether it took it. RpcError."""
    session = {"sessionId": opened.conversation_id}
    for option in _sequence(opened.settings.get("configOptions")):
        is_model = "model" in (option.get("category"), option.get("id"))
        if is_model and (value := _offered(model, _choices(option), "value")) is not None:
            await wire.call("session/set_config_option", {**session, "configId": option.get("id"), "value": value})
            return True
    offered = _sequence(_mapping(opened.settings.get("models")).get("availableModels"))
    if (value := _offered(model, offered, "modelId")) is not None:
        await wire.call("session/set_model", {**session, "modelId": value})
        return True
    return False


def refused(error: RpcError) -> StartFailed:
    """The failed start that an error answer comes to."""
    if error.code == AUTH_REQUIRED:
        return StartFailed(Code.AUTH_REQUIRED, f"the agent wants a login: {error.text}", permanent=True)
    return StartFailed(Code.HANDSHAKE_FAILED, f"the agent refused: {error.text}")


async def _create(wire: Wire, request: StartRequest) -> Opened:
    try:
        answer = _mapping(await wire.call("session/new", _place(request)))
    except RpcError as error:
        raise refused(error) from error
    conversation_id = answer.get("sessionId")
    if not isinstance(conversation_id, str) or not conversation_id:
        raise StartFailed(Code.HANDSHAKE_FAILED, "the agent gave its new conversation no id")
    return Opened("created", conversation_id, answer)


def _ways(peer: Peer, *, prefer_load: bool) -> Iterator[tuple[str, Outcome]]:
    """The offered ways to restore, the preferred one first."""
    offered = {_LOAD: peer.load, _RESUME: peer.resume}
    order = (_LOAD, _RESUME) if prefer_load else (_RESUME, _LOAD)
    return (way for way in order if offered[way])


def _not_restored(error: RpcError, gone_patterns: Iterable[str]) -> StartFailed:
    """Only the agent type's own patterns say *gone*: the error codes of agents differ."""
    if any(_matches(pattern, error.text) for pattern in gone_patterns):
        return StartFailed(Code.TOKEN_REJECTED, f"the agent says: {error.text}", token_valid=False)
    return refused(error)


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text, re.IGNORECASE) is not None
    except re.error:
        return False


def _place(request: StartRequest) -> dict[str, Any]:
    return {"cwd": request.cwd, "mcpServers": [_mcp_server(server) for server in request.mcp_servers]}


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


def _choices(option: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The values of a select option, in groups or not."""
    for choice in _sequence(option.get("options")):
        yield from _sequence(choice["options"]) if "options" in choice else (choice,)


def _offered(model: str, choices: Iterable[Mapping[str, Any]], key: str) -> str | None:
    wanted = model.casefold()
    for choice in choices:
        if wanted in (str(choice.get(key)).casefold(), str(choice.get("name")).casefold()):
            return str(choice.get(key))
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
