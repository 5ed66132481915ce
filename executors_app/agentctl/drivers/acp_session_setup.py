"""Set up a session with an ACP agent.

Initialize, log the agent in (``authenticate``) or out (``logout``), create or restore the conversation, and check
whether the agent lists it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from executors_app.agentctl.drivers import LoginRequest, StartFailed, StartRequest
from executors_app.agentctl.drivers.acp_requests import QUESTION_CAPABILITIES
from executors_app.agentctl.drivers.acp_updates import ReplayCollector, UpdateRouter
from executors_app.agentctl.drivers.failures import LOGIN_PATTERN
from executors_app.agentctl.drivers.json_rpc import METHOD_NOT_FOUND, AgentGone, JsonRpcConnection, RpcError
from executors_app.agentctl.drivers.json_values import object_of
from executors_app.agentctl.process.async_io import PipeStuck
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.auth_methods import AGENT, parse_auth_methods
from executors_app.wire.protocol import CapabilityShortfall, Code, LoginAction, LoginState
from executors_app.wire.token_redaction import token_fingerprint

LIST_TIMEOUT: Final = 5.0
"""Seconds for reading the whole list."""
_MAX_PAGES: Final = 50


async def is_listed(
    wire: JsonRpcConnection, cwd: str, conversation_id: str, *, empty_is_known: bool = False
) -> bool | None:
    """Whether the agent lists the conversation, for its directory or for any.

    None if unknown: the list could not be read to its end, or is empty and ``empty_is_known`` is not set: an agent
    with an empty list may have lost its store, or list nothing.
    """
    try:
        async with asyncio.timeout(LIST_TIMEOUT):
            ids = await _listed_ids(wire, {"cwd": cwd}, conversation_id)
            if conversation_id not in ids:
                ids |= await _listed_ids(wire, {}, conversation_id)
    except (RpcError, AgentGone, PipeStuck, TimeoutError, _ListingUnusable):
        return None
    if not ids and not empty_is_known:
        return None
    return conversation_id in ids


class _ListingUnusable(Exception):
    """The answer is not a list, or has no end."""


async def _listed_ids(wire: JsonRpcConnection, params: dict[str, Any], until: str) -> set[str]:
    """Return the listed ids, page by page until ``until`` is found or the list ends.

    Raises RpcError, AgentGone, _ListingUnusable.
    """
    ids: set[str] = set()
    for _ in range(_MAX_PAGES):
        page = await wire.call("session/list", params)
        sessions = object_of(page).get("sessions")
        if not isinstance(sessions, list):
            raise _ListingUnusable
        ids |= {str(each.get("sessionId")) for each in sessions if isinstance(each, dict)}
        cursor = page.get("nextCursor")
        if until in ids or not isinstance(cursor, str) or not cursor:
            return ids
        params = {**params, "cursor": cursor}
    raise _ListingUnusable


ACP_VERSION: Final = 1
AUTH_REQUIRED: Final = -32000
_SAYS_GONE: Final = re.compile(
    r"(?:unknown|invalid) session (?:identifier|id)\b"
    r"|会话不存在|(?:未找到|找不到)[^。\n]{0,8}会话|会话[^。\n]{0,4}未找到"
    r"|\b(?:session|conversation|thread|chat)(?: history)? (?:is |was |has been )"
    r"?(?:deleted|removed|missing|no longer available|not live)\b"
    r"|\b(?:session|conversation|thread|chat)(?: history)? (?:could not|can't|cannot) be (?:found|located)\b"
    r"|\b(?:no such|unknown|could not find|couldn't find|cannot find|failed to find|unable to (?:find|locate))"
    r"(?: the| any| a)?"
    r" (?:session|conversation|thread|chat)\b"
    r"|\bno (?:(?:saved|stored|previous|earlier|existing|matching) )?(?:session|conversation|thread|chat)s?"
    r"(?: (?:was|were))? found\b|(?:session|conversation|thread|chat)_?not_?found"
    # With an id behind the word, which has a digit in it or is quoted.
    r"|\b(?:session|conversation|thread|chat)(?:(?: with)? id| history| file)?:?"
    r"(?: \"?[\w.:-]*\d[\w.:-]*\"?| [\"'`][^\"'`]{1,100}[\"'`])?"
    r" (?:was |is |could )?(?:not (?:be )?found|does not exist|doesn't exist|no longer exists)\b",
    re.IGNORECASE,
)
"""How agents answer for a conversation that they do not have, without its id: droid, grok, kilo, opencode, others."""
_SAYS_GONE_ON_LOAD: Final = re.compile(r"\bFS_NOT_FOUND\b|\"service\": ?\"session\"", re.IGNORECASE)
"""The same in words that also other requests are answered with."""
_SAYS_MISSING: Final = re.compile(
    r"\b(?:not found|unknown|no such|invalid|expired|closed|does(?: not|n't) exist|no longer exists"
    r"|not (?:been )?(?:live|open|loaded|active|initiali[sz]ed))\b",
    re.IGNORECASE,
)
"""What an error says of the conversation that it names. Answers to prompts may name it for any other reason."""
_MAY_PASS: Final = re.compile(
    r"already (?:in use|running|open|loaded|active|exists|attached)|\b(?:in|being) used?\b|\block(?:ed)?\b"
    r"|attached to another|(?:\b|_)busy\b|time(?:d )?-?out|permission denied|EACCES"
    r"|\bE(?:NOSPC|DQUOT|MFILE|NFILE|IO|PERM|ROFS|BUSY|AGAIN|NOTFOUND|CONN\w+)\b|no space left|quota|out of memory"
    r"|read-only file system|disk (?:is )?full|too many"
    r"|rate.limit|overloaded|unavailable|connection|network|fetch failed|try again|cancell?ed|aborted|forbidden"
    r"|\b(?:http|status|code)(?: status)?(?: code)?[ :=]{1,3}(?:40[1389]|42[359]|5\d\d)\b"
    r"|internal server error|bad gateway|unauthori[sz]ed|not authori[sz]ed"
    r"|\bmcp\b|\bmodel\b.{0,80}\bnot (?:available|found|supported)",
    re.IGNORECASE,
)
"""Hindrances that say nothing about whether the conversation still exists."""
_MIN_ID_LENGTH: Final = 6
"""Characters; a shorter id could be an ordinary word of an error message."""
_INITIALIZE: Final[dict[str, Any]] = {
    "protocolVersion": ACP_VERSION,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "auth": {"terminal": True},
        "session": {"configOptions": {"boolean": {}}},
        "elicitation": QUESTION_CAPABILITIES,
    },
    "clientInfo": {"name": "kandev", "version": "1"},
}

Outcome = Literal["resumed", "loaded", "created"]
_LOAD: Final[tuple[str, str, Outcome]] = ("load_session", "session/load", "loaded")
_RESUME: Final[tuple[str, str, Outcome]] = ("resume_session", "session/resume", "resumed")
_ERROR_TEXT_LIMIT: Final = 500


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What the agent reports about itself; its capabilities are claims until they are used."""

    agent: Mapping[str, str]
    load: bool
    resume: bool
    lists: bool
    """Whether it offers ``session/list``."""
    closes: bool
    """Whether it offers ``session/close``."""
    deletes: bool
    """Whether it offers ``session/delete``."""
    directories: bool
    """Whether it accepts directories in addition to its cwd."""
    prompt_kinds: frozenset[str]
    """Kinds of content blocks that it accepts in addition to text and resource links."""
    mcp_transports: frozenset[str]
    """Kinds of MCP servers that it accepts in addition to programs: *http*, *sse*."""
    auth_methods: Sequence[Mapping[str, Any]] = ()
    """Ways to log in, as ``agent_settings`` describes them."""
    logs_out: bool = False
    """Whether it offers ``logout``."""
    steers: bool = False
    """Whether it takes a text into a running turn (``_session/steering``)."""

    @property
    def auth(self) -> dict[str, Any]:
        """The value of ``StartResult.auth``."""
        return {"methods": [dict(each) for each in self.auth_methods], "logout": self.logs_out}

    @property
    def capabilities(self) -> dict[str, Any]:
        """The value of ``StartResult.capabilities``. Every ACP agent accepts a history as text in a prompt."""
        protocol = f"acp/{ACP_VERSION}"
        capabilities: dict[str, Any] = {
            "load_session": self.load,
            "resume_session": self.resume,
            "history": True,
            "protocol": protocol,
            "prompt": sorted(self.prompt_kinds),
        }
        if self.steers:
            capabilities["steering"] = True
        return capabilities


@dataclass(slots=True)
class CapabilityTrial:
    """Records which claimed capabilities fail when they are used."""

    in_use: str = ""
    """The capability in use whose answer is still due; empty if there is none."""
    unkept: dict[str, dict[str, str]] = field(default_factory=dict)
    """The value of ``StartResult.unkept``."""

    def failed(self, shortfall: CapabilityShortfall, message: str) -> None:
        """Record that the capability in use has failed; does nothing if none is in use."""
        if self.in_use:
            self.unkept[self.in_use] = {"how": shortfall.value, "said": message[:_ERROR_TEXT_LIMIT]}
            self.in_use = ""


@dataclass(frozen=True, slots=True)
class OpenedConversation:
    """An open conversation."""

    outcome: Outcome
    conversation_id: str
    settings: Mapping[str, Any]
    """The agent's answer, with the models and options that it offers."""
    replay: ReplayCollector
    """What the agent replayed of it."""
    listed: bool | None = None
    """As in ``StartResult``."""


def _reported_agent(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the agent's name and version, and its title for people if it has one."""
    agent = {"name": str(info.get("name") or ""), "version": str(info.get("version") or "")}
    if info.get("title"):
        agent["title"] = str(info["title"])
    return agent


async def initialize(wire: JsonRpcConnection) -> AgentInfo:
    """Send ``initialize`` and return what the agent reports; raises StartFailed."""
    try:
        answer = await wire.call("initialize", _INITIALIZE)
    except RpcError as error:
        raise start_failure(error) from error
    version = object_of(answer).get("protocolVersion")
    if version not in (ACP_VERSION, str(ACP_VERSION)):  # some agents repeat the number as text
        raise StartFailed(
            Code.HANDSHAKE_FAILED,
            f"the agent speaks version {version!r} of ACP, not {ACP_VERSION}",
            permanent=True,
        )
    claims = _as_mapping(answer.get("agentCapabilities"))
    of_sessions = _as_mapping(claims.get("sessionCapabilities"))
    info = _as_mapping(answer.get("agentInfo"))
    takes = _as_mapping(claims.get("promptCapabilities"))
    servers = _as_mapping(claims.get("mcpCapabilities"))
    kinds = {"image": takes.get("image"), "audio": takes.get("audio"), "resource": takes.get("embeddedContext")}
    return AgentInfo(
        agent=_reported_agent(info),
        load=claims.get("loadSession") is True,
        resume=of_sessions.get("resume") not in (None, False),
        lists=of_sessions.get("list") not in (None, False),
        closes=of_sessions.get("close") not in (None, False),
        deletes=of_sessions.get("delete") not in (None, False),
        directories=of_sessions.get("additionalDirectories") not in (None, False),
        mcp_transports=frozenset(kind for kind in ("http", "sse") if servers.get(kind) is True),
        prompt_kinds=frozenset(kind for kind, taken in kinds.items() if taken is True),
        auth_methods=parse_auth_methods(answer.get("authMethods")),
        logs_out=isinstance(_as_mapping(claims.get("auth")).get("logout"), dict),
        steers=_as_mapping(_as_mapping(answer.get("_meta")).get("steering")).get("supported") is True,
    )


async def open_conversation(
    wire: JsonRpcConnection,
    request: StartRequest,
    peer: AgentInfo,
    trial: CapabilityTrial,
    updates: UpdateRouter,
) -> OpenedConversation:
    """Restore the conversation of the token (``native``), or create a new one; raises StartFailed.

    A conversation that cannot be restored is never replaced by a new one here. ``trial`` records which capabilities
    fail. ``updates`` collects the replay.
    """
    if request.strategy != "native":
        return await _create_conversation(wire, request, peer, updates)
    if not request.resume_token:
        raise StartFailed(Code.VALIDATION_ERROR, "a native resume requires a token", permanent=True)
    for capability, method, outcome in _restore_methods(peer, prefer_load=request.prefer_load):
        updates.begin_restore(request.resume_token)
        trial.in_use = capability
        params = {**_session_parameters(request, peer), "sessionId": request.resume_token}
        try:
            answer = _as_mapping(await wire.call(method, params, at_reply=updates.answered))
        except RpcError as error:
            if error.code == METHOD_NOT_FOUND:
                trial.failed(CapabilityShortfall.UNIMPLEMENTED, error.text)
                continue
            asks = peer.lists and error.code != AUTH_REQUIRED
            if asks:
                listed = await is_listed(wire, request.cwd, request.resume_token)
            else:
                listed = None
            raise _restore_failure(error, request, trial, listed=listed) from error
        # Some agents continue the conversation under another id, which their answer names.
        named = _conversation_id_of(answer)
        replay = await updates.settle(named, request.expected_requests)
        trial.in_use = ""
        # Some agents report success for a conversation that they have lost, and open an empty one.
        listed = None
        if peer.lists and not replay.messages:
            listed = await is_listed(wire, request.cwd, request.resume_token)
        return OpenedConversation(outcome, named or request.resume_token, answer, replay, listed)
    raise StartFailed(Code.RESUME_UNSUPPORTED, "the agent does not support resuming a conversation", permanent=True)


def start_failure(error: RpcError) -> StartFailed:
    """Return the StartFailed for an error answer."""
    if error.code == AUTH_REQUIRED or LOGIN_PATTERN.search(error.text):
        return StartFailed(Code.AUTH_REQUIRED, f"the agent requires a login: {error.text}", permanent=True)
    return StartFailed(Code.HANDSHAKE_FAILED, f"the agent answered with an error: {error.text}")


def _conversation_id_of(answer: Mapping[str, Any]) -> str | None:
    conversation_id = answer.get("sessionId")
    if isinstance(conversation_id, str) and conversation_id:
        return conversation_id
    return None


def _missing_id(answer: Mapping[str, Any]) -> StartFailed:
    named = answer.get("sessionId")
    if named is None or isinstance(named, str):
        return StartFailed(Code.HANDSHAKE_FAILED, "the agent returned no id for its new conversation")
    kind = "an object or a list"
    if isinstance(named, int | float):
        kind = "a number"
    message = f"the agent named its new conversation with {kind}, but ACP requires a text"
    return StartFailed(Code.HANDSHAKE_FAILED, message, permanent=True)


async def _create_conversation(
    wire: JsonRpcConnection, request: StartRequest, peer: AgentInfo, updates: UpdateRouter
) -> OpenedConversation:
    updates.begin_new()
    try:
        answer = _as_mapping(await wire.call("session/new", _session_parameters(request, peer)))
    except RpcError as error:
        raise start_failure(error) from error
    conversation_id = _conversation_id_of(answer)
    if conversation_id is None:
        raise _missing_id(answer)
    # Some agents continue the conversation of the directory, and replay it.
    is_known = token_fingerprint(conversation_id) in request.known_conversations
    replay = await updates.settle_new(conversation_id, request.expected_requests, is_known=is_known)
    return OpenedConversation("created", conversation_id, answer, replay)


def _restore_methods(peer: AgentInfo, *, prefer_load: bool) -> Iterator[tuple[str, str, Outcome]]:
    """Return the ways to restore that the agent claims, the preferred one first."""
    offered = {_LOAD: peer.load, _RESUME: peer.resume}
    methods = [_LOAD, _RESUME]
    if not prefer_load:
        methods.reverse()
    return (method for method in methods if offered[method])


def _restore_failure(
    error: RpcError, request: StartRequest, trial: CapabilityTrial, *, listed: bool | None
) -> StartFailed:
    """Return the StartFailed for a conversation that is gone, or that only could not be opened.

    Agents use different error codes. The conversation counts as gone after an error that names its id, whatever the
    code, or that matches a pattern of the agent type, of the profile or of `_SAYS_GONE`, unless the agent still lists
    the conversation (``listed``) or reports a hindrance that may pass. If the type has no patterns, any error counts
    for a conversation that the agent does not list.
    """
    patterns = request.gone_patterns
    passes = _may_pass(error)
    by_type = any(_matches(pattern, error.text) for pattern in patterns)
    says_gone = by_type or (not passes and _says_gone(error, request.resume_token or ""))
    if (says_gone and listed is not True) or (not patterns and not passes and listed is False):
        trial.in_use = ""  # a missing conversation does not refute the capability
        message = f"the agent reported: {error.text}"
        if not says_gone:
            message += ", and does not list the conversation"
        return StartFailed(Code.TOKEN_REJECTED, message, token_valid=False)
    if error.code == AUTH_REQUIRED:
        trial.in_use = ""
    trial.failed(CapabilityShortfall.ERROR, error.text)
    return start_failure(error)


def reports_loss(error: RpcError, token: str) -> bool:
    """Whether the answer to a prompt says that the agent does not have the conversation ``token``."""
    names_it = _names_conversation(error, token) and _SAYS_MISSING.search(error.text) is not None
    return not _may_pass(error) and (names_it or _SAYS_GONE.search(error.text) is not None)


def _may_pass(error: RpcError) -> bool:
    """Whether an error has another cause: a login, or a hindrance that may pass."""
    is_login = error.code == AUTH_REQUIRED or LOGIN_PATTERN.search(error.text) is not None
    return is_login or _MAY_PASS.search(error.text) is not None


def _says_gone(error: RpcError, token: str) -> bool:
    says = _SAYS_GONE.search(error.text) or _SAYS_GONE_ON_LOAD.search(error.text)
    return says is not None or _names_conversation(error, token)


def _names_conversation(error: RpcError, token: str) -> bool:
    """Whether the error names our conversation by its id, which is redacted from here on."""
    return len(token) >= _MIN_ID_LENGTH and token.lower() in (error.text + error.message).lower()


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text, re.IGNORECASE) is not None
    except re.error:
        return False


def _session_parameters(request: StartRequest, peer: AgentInfo) -> dict[str, Any]:
    """Return directory and MCP servers of the conversation; sent with every start, because no agent stores them."""
    servers = request.accepted_servers(peer.mcp_transports)
    parameters: dict[str, Any] = {"cwd": request.cwd, "mcpServers": [_mcp_server(server) for server in servers]}
    if peer.directories and request.additional_directories:
        parameters["additionalDirectories"] = list(request.additional_directories)
    return parameters


def _mcp_server(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return an MCP server in ACP's shape; ``env`` and ``headers`` may be given as plain objects, too."""
    defaults: dict[str, Any] = {"args": [], "env": []}
    if "url" in server:
        defaults = {"type": "http", "headers": []}
    pairs = {
        key: [{"name": name, "value": str(value)} for name, value in server[key].items()]
        for key in ("env", "headers")
        if isinstance(server.get(key), Mapping)
    }
    return {**defaults, **server, **pairs}


def _as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


@contextlib.contextmanager
def timed_step(timings: dict[str, float], step: str) -> Iterator[None]:
    """Write the milliseconds that the block takes into ``timings``."""
    begin = time.monotonic()
    yield
    timings[step] = round((time.monotonic() - begin) * 1000, 1)


_LOGGED_OUT: Final = "the agent was logged out, as requested"


class Login:
    """The login or logout of one start; ``outcome`` is the value of ``StartResult.login``."""

    def __init__(self, request: LoginRequest | None):
        self._request = request
        self.outcome: dict[str, Any] = {}
        if request:
            ended = {"code": Code.LOGIN_FAILED.value, "reason": "the agent ended before it answered"}
            self.outcome = {"state": LoginState.FAILED.value, **ended}

    async def carry_out(self, wire: JsonRpcConnection, peer: AgentInfo) -> None:
        """Do what the start was asked for; nothing without a request.

        Raises StartFailed if it fails, and after a logout, because the agent opens no conversation then. AgentGone and
        PipeStuck pass through.
        """
        request = self._request
        if request is None:
            return
        if request.action == LoginAction.LOGOUT:
            if not peer.logs_out:
                raise self._failed(Code.LOGIN_UNSUPPORTED, "the agent does not offer to log out")
            await self._call(wire, "logout", {}, request.timeout)
            raise StartFailed(Code.AUTH_REQUIRED, _LOGGED_OUT, permanent=True)
        if not any(each["id"] == request.method and each["type"] == AGENT for each in peer.auth_methods):
            raise self._failed(Code.LOGIN_UNSUPPORTED, "the agent no longer offers this way to log in")
        await self._call(wire, "authenticate", {"methodId": request.method}, request.timeout)

    async def _call(self, wire: JsonRpcConnection, method: str, params: dict[str, Any], limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await wire.call(method, params)
        except TimeoutError:
            raise self._failed(Code.LOGIN_TIMEOUT, f"the agent did not finish within {limit:g} s") from None
        except RpcError as error:
            reason = clean_text(error.text, REASON_LIMIT) or "the agent gave no reason"
            raise self._failed(Code.LOGIN_FAILED, reason) from error
        self.outcome = {"state": LoginState.SUCCEEDED.value, "code": "", "reason": ""}

    def _failed(self, code: Code, reason: str) -> StartFailed:
        self.outcome = {"state": LoginState.FAILED.value, "code": code.value, "reason": reason}
        if self._request is not None and self._request.action == LoginAction.LOGOUT:
            return StartFailed(code, f"the logout failed: {reason}", permanent=True)
        return StartFailed(Code.AUTH_REQUIRED, f"the login failed: {reason}", permanent=True)
