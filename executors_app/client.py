"""The control plane's end of the wire to agentctl; nothing else speaks to one (interfaces 6).

Never redirected, never through a proxy, no cookies, and no answer above 64 MiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from io import BytesIO
from typing import Any, Final, NoReturn
from urllib.parse import quote

import aiohttp
import orjson

from executors_app.agentctl.protocol import GENERATION_HEADER, Code
from executors_app.answers import MAX_ANSWER, check_execution, error_of, read_json, too_large
from executors_app.bulk_status import StatusTarget, observe_statuses
from executors_app.domain import ExecutionFacts
from executors_app.errors import AgentctlForeign, AgentctlRefused, AgentctlUnreachable, StaleGeneration
from executors_app.event_stream import EventStream
from executors_app.shell_stream import ShellStream

__all__ = ["AgentctlClient", "EventStream", "ShellStream", "StatusTarget", "observe_statuses", "open_http"]

_TIMEOUT: Final = 30.0
_HEARTBEAT: Final = 20.0


def open_http() -> aiohttp.ClientSession:
    """One pool of connections for many clients of one event loop; the caller closes it."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trace_configs=[tracing],
        trust_env=False,
    )


async def _refuse_redirect(*_: Any) -> NoReturn:
    raise AgentctlForeign("What answered is not agentctl: it redirects.", reason="redirect")


class AgentctlClient:
    """Speaks to the agentctl of one execution, as one generation.

    Every call raises AgentctlUnreachable (no answer: it may or may not have happened; give it
    again), AgentctlForeign (not ours), StaleGeneration, or AgentctlRefused with agentctl's own
    ``refusal``. Without ``http`` every call opens a connection of its own.
    """

    def __init__(
        self, url: str, token: str, execution_id: str, *, generation: int = 0, http: aiohttp.ClientSession | None = None
    ):
        self._url = url.rstrip("/")
        self._execution_id = execution_id
        self.generation = generation
        self._headers = {"Authorization": f"Bearer {token}", GENERATION_HEADER: str(generation)}
        self._http = http

    @classmethod
    def of(cls, execution: ExecutionFacts, http: aiohttp.ClientSession | None = None) -> AgentctlClient:
        """The client for an execution's row."""
        return cls(
            execution.agentctl_url, execution.auth_token, execution.id, generation=execution.generation, http=http
        )

    async def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """``protocol.Status``; AgentctlForeign if it names another execution."""
        answer = await self._get("/status", timeout=timeout)
        check_execution(answer, self._execution_id)
        return answer

    async def capabilities(self) -> dict[str, Any]:
        """What the agent can do, as far as known."""
        return await self._get("/capabilities")

    async def start_agent(self, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Start or resume the agent; the same ``launch_id`` again gets the first result.

        A failed start is AgentctlRefused whose ``details["answer"]`` holds permanent and token_valid.
        """
        return await self._post("/agent/start", body, timeout=timeout)

    async def stop_agent(self, grace: float, intent_id: str) -> dict[str, Any]:
        """TERM, then after ``grace`` seconds KILL, for the agent's whole tree."""
        return await self._post("/agent/stop", {"grace": grace, "intent_id": intent_id}, timeout=grace + _TIMEOUT)

    async def prompt(
        self,
        message_id: str,
        text: str,
        attachments: Sequence[Mapping[str, Any]] = (),
        prompt_kind: str = "user",
    ) -> dict[str, Any]:
        """Hand over a prompt: ``{accepted, duplicate}``; refusals are ``busy`` and ``not_running``."""
        body = {"message_id": message_id, "text": text, "attachments": list(attachments), "prompt_kind": prompt_kind}
        return await self._post("/prompt", body)

    async def cancel(self, message_id: str, intent_id: str) -> dict[str, Any]:
        """Ask for the end of the turn of ``message_id``, and of no other."""
        return await self._post("/cancel", {"message_id": message_id, "intent_id": intent_id})

    async def answer(self, permission_id: str, option_id: str | None) -> dict[str, Any]:
        """Answer an open permission; None: nobody did, and the agent is told that it was cancelled."""
        return await self._post(f"/permissions/{quote(permission_id, safe='')}", {"option_id": option_id})

    async def agent_session(self) -> dict[str, Any]:
        """``{resume_token, last_message_uuid, fingerprint}``; the token is a credential."""
        return await self._get("/agent/session")

    async def list_files(self, path: str = "") -> dict[str, Any]:
        """A directory of the workspace: ``{path, entries: [{name, type, size}], truncated}``."""
        return await self._get("/files", {"path": path})

    async def read_file(self, path: str) -> dict[str, Any]:
        """A file of the workspace: ``{path, size, encoding: "utf-8" | "base64", content, truncated}``."""
        return await self._get("/files/content", {"path": path})

    async def write_file(self, path: str, content: bytes, expected: str | None = None) -> dict[str, Any]:
        """Write a file of the workspace: ``{path, size, hash, created}``.

        ``expected``: the hash of what is there, ``*`` for whatever is there, None for nothing.
        """
        headers = {} if expected is None else {"If-Match": expected}
        sent = await self._call("PUT", "/files/content", params={"path": path}, data=content, headers=headers)
        return read_json(200, sent)

    async def git(self, what: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """``status``, ``diff`` (``path``) or ``log`` (``limit``, ``skip``, ``ref``) of the workspace's git."""
        return await self._get(f"/git/{what}", params)

    async def commit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Commit in the workspace: ``{message, paths?, author_name?, author_email?}``."""
        return await self._post("/git/commit", body, timeout=120)

    async def snapshot(self) -> dict[str, Any]:
        """Keep the working tree in the session's hidden ref."""
        return await self._post("/snapshot", {}, timeout=120)

    async def restore_snapshot(self, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Bring the working tree back from the session's hidden ref."""
        return await self._post("/snapshot/restore", body or {}, timeout=120)

    async def shutdown(self, stop_agent: bool, intent_id: str) -> dict[str, Any]:
        """End agentctl, after a snapshot."""
        return await self._post("/shutdown", {"stop_agent": stop_agent, "intent_id": intent_id}, timeout=120)

    @asynccontextmanager
    async def events(self, after: int, epoch: str) -> AsyncIterator[EventStream]:
        """Stream the journal behind ``after`` of ``epoch``; older generations' streams are closed by it."""
        params = {"after": str(after), "epoch": epoch, "generation": str(self.generation)}
        async with self._socket("/events", params) as socket:
            yield EventStream(socket)

    @asynccontextmanager
    async def shell(self, name: str, columns: int, rows: int) -> AsyncIterator[ShellStream]:
        """Open or find a shell of the workspace; whoever had it open before is overtaken."""
        params = {"shell": name, "cols": str(columns), "rows": str(rows)}
        async with self._socket("/shell", params) as socket:
            yield ShellStream(socket)

    @asynccontextmanager
    async def _socket(self, path: str, params: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with self._pool() as http:
            try:
                async with asyncio.timeout(_TIMEOUT):
                    socket = await http.ws_connect(
                        self._url + path,
                        params=params,
                        headers=self._headers,
                        heartbeat=_HEARTBEAT,
                        max_msg_size=0,
                        compress=0,
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise _refused_upgrade(path, error.status) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _unreachable(error) from error
            async with socket:
                yield socket

    async def _get(
        self, path: str, params: Mapping[str, str] | None = None, *, timeout: float = _TIMEOUT
    ) -> dict[str, Any]:
        return read_json(200, await self._call("GET", path, params=params, timeout=timeout))

    async def _post(self, path: str, body: Mapping[str, Any], *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        data = orjson.dumps(dict(body))
        return read_json(200, await self._call("POST", path, data=data, headers=headers, timeout=timeout))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = _TIMEOUT,
    ) -> bytes:
        """The body of a good answer."""
        headers = self._headers | dict(headers or {})
        try:
            async with asyncio.timeout(timeout), self._pool() as http:
                # As a file: aiohttp warns of long bytes.
                sent = None if data is None else BytesIO(data)
                call = http.request(
                    method, self._url + path, params=params, data=sent, headers=headers, allow_redirects=False
                )
                async with call as response:
                    body = await _read_capped(response)
                    status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable(error) from error
        if not 200 <= status < 300:
            raise error_of(status, body)
        return body

    def _pool(self) -> Any:
        return open_http() if self._http is None else nullcontext(self._http)


async def _read_capped(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER:
            raise too_large()
        parts.append(part)
    return b"".join(parts)


def _unreachable(error: Exception) -> AgentctlUnreachable:
    """The error of a call without an answer, with the reason a sweep would give (``observe_statuses``)."""
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, TimeoutError):
        return AgentctlUnreachable("agentctl did not answer in time.", reason="timeout")
    if isinstance(cause, ConnectionRefusedError):
        return AgentctlUnreachable("Nothing listens where agentctl was.", reason="refused")
    if isinstance(cause, aiohttp.InvalidURL):
        return AgentctlUnreachable("The address of agentctl is no URL.", reason="bad_url")
    if isinstance(cause, (aiohttp.ServerDisconnectedError, ConnectionError)):
        return AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed")
    return AgentctlUnreachable(f"agentctl cannot be reached: {type(cause).__name__}", reason="unreachable")


def _refused_upgrade(path: str, status: int) -> Exception:
    """The error of a socket that was not opened; the answer's body is out of reach here."""
    if status == 409 and path == "/events":
        return StaleGeneration(status=status, refusal=Code.STALE_GENERATION.value)
    refusals = {400: Code.VALIDATION_ERROR, 404: Code.NOT_FOUND, 409: Code.CONFLICT, 500: Code.INTERNAL_ERROR}
    if status in refusals:
        return AgentctlRefused(f"agentctl refused to open {path}.", status=status, refusal=refusals[status].value)
    return error_of(status, b"")
