"""The control plane's client of agentctl, and the HTTP below it and below calls to hosts.

A call returns one valid answer or raises one error. It is never redirected, never goes through a proxy, has no cookies,
and takes no answer above 64 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from io import BytesIO
from typing import IO, Any, Final, NoReturn, cast
from urllib.parse import quote

import aiohttp
import orjson

from executors_app.agentctl_client.streams import EventStream, ShellStream
from executors_app.agentctl_client.tunnels import TunnelConnector, tunnel_host_header
from executors_app.machine.agentctl_answers import (
    MAX_ANSWER,
    answer_too_large,
    check_execution,
    error_for_status,
    read_json,
)
from executors_app.machine.git.workspace_root import MAX_BUNDLE_BYTES, parse_refs
from executors_app.machine.listeners import CLEANS_UP_CLOSED, LOCAL_HOST_HEADER, AgentctlListener, connector_url
from executors_app.machine.process.execution_processes import recorded_process
from executors_app.wire import socket_urls
from executors_app.wire.errors import (
    AgentctlForeign,
    AgentctlOutdated,
    AgentctlRefused,
    AgentctlUnreachable,
    ExecutorError,
    LaunchFailed,
    StaleGeneration,
    WorkspaceGone,
)
from executors_app.wire.executions import LOCAL, ExecutionFacts
from executors_app.wire.launch_tokens import bearer_token
from executors_app.wire.protocol import GENERATION_HEADER, SOCKET_MESSAGE_LIMIT, Code, Job

DEFAULT_TIMEOUT: Final = 30.0
_MAKE_TIMEOUT: Final = 900.0
_GIT_TIMEOUT: Final = 120.0
"""Seconds for several calls of git, each of which agentctl limits by itself."""
_HEARTBEAT_INTERVAL: Final = 20.0
_CLOSE_TIMEOUT: Final = aiohttp.ClientWSTimeout(ws_close=0.5)
"""Short: a frozen agentctl never confirms the close, and closing a stream must not wait for it."""
_FINGERPRINT_BYTES: Final = 32


def open_connection_pool() -> aiohttp.ClientSession:
    """Return one connection pool for many clients of one event loop; the caller closes it."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    return aiohttp.ClientSession(
        connector=TunnelConnector(limit=0, enable_cleanup_closed=CLEANS_UP_CLOSED),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trace_configs=[tracing],
        trust_env=False,
    )


async def _refuse_redirect(*_: Any) -> NoReturn:
    raise AgentctlForeign("The server that answered is not agentctl: it sent a redirect.", reason="redirect")


def tls_trust(config: Mapping[str, Any]) -> aiohttp.Fingerprint | bool:
    """Return the certificate check for an executor's https address: the pinned certificate, or the system's trust.

    An invalid pin matches no certificate, so that it never weakens the check.
    """
    pin = config.get("fingerprint")
    if not pin:
        return True
    try:
        return aiohttp.Fingerprint(bytes.fromhex(str(pin).lower().removeprefix("sha256:").replace(":", "")))
    except ValueError:
        return aiohttp.Fingerprint(bytes(_FINGERPRINT_BYTES))


class HttpClient:
    """Calls to one address with one set of headers.

    Every call may raise AgentctlUnreachable (no answer: the request may or may not have been carried out, so repeat
    it), AgentctlForeign (not ours), StaleGeneration, or AgentctlRefused with the other end's own ``refusal``. Without
    ``http``, every call opens its own connection. An ``AgentctlListener`` is proven before anything is sent to it.
    """

    def __init__(
        self,
        address: str | AgentctlListener,
        headers: Mapping[str, str],
        *,
        trust: aiohttp.Fingerprint | bool = True,
        http: aiohttp.ClientSession | None = None,
    ):
        if isinstance(address, AgentctlListener):
            self._url = connector_url(address)
            self._headers = {**headers, "Host": LOCAL_HOST_HEADER}
        else:
            self._url = address.rstrip("/")
            self._headers = {**headers, **tunnel_host_header(address)}
        self._trust = trust
        self._http = http

    @asynccontextmanager
    async def socket(self, path: str, params: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket."""
        async with self._pool() as http:
            try:
                async with asyncio.timeout(DEFAULT_TIMEOUT):
                    socket = await http.ws_connect(
                        self._url + path,
                        params=params,
                        headers=self._headers,
                        ssl=self._trust,
                        heartbeat=_HEARTBEAT_INTERVAL,
                        timeout=_CLOSE_TIMEOUT,
                        max_msg_size=SOCKET_MESSAGE_LIMIT,
                        compress=0,
                    )
            except aiohttp.WSServerHandshakeError as error:
                raise _upgrade_error(path, error.status) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _unreachable_error(error) from error
            async with socket:
                yield socket

    async def get(
        self,
        path: str,
        params: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> dict[str, Any]:
        """Return the JSON object of a successful answer."""
        return read_json(200, await self.call("GET", path, params=params, timeout=timeout))

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        params: Mapping[str, str] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        method: str = "POST",
    ) -> dict[str, Any]:
        """Send a JSON object and return the JSON object of a successful answer."""
        headers = {"Content-Type": "application/json"}
        data = orjson.dumps(dict(body))
        return read_json(200, await self.call(method, path, params=params, data=data, headers=headers, timeout=timeout))

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> bytes:
        """Return the body of a successful answer."""
        headers = self._headers | dict(headers or {})
        try:
            async with asyncio.timeout(timeout), self._pool() as http:
                sent = None
                if data is not None:
                    sent = BytesIO(data)  # as a file, because aiohttp warns about large bytes objects
                call = http.request(
                    method,
                    self._url + path,
                    params=params,
                    data=sent,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._trust,
                )
                async with call as response:
                    body = await _read_capped(response)
                    status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable_error(error) from error
        if not 200 <= status < 300:
            raise error_for_status(status, body)
        return body

    async def download(
        self, path: str, body: Mapping[str, Any], into: IO[bytes], *, limit: int, timeout: float
    ) -> dict[str, Any]:
        """Post a JSON object; return the first line of the answer and write the rest to ``into``.

        Raises AgentctlForeign for more than ``limit`` bytes.
        """
        headers = self._headers | {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout), self._pool() as http:
                call = http.post(
                    self._url + path,
                    data=BytesIO(orjson.dumps(dict(body))),
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._trust,
                )
                async with call as response:
                    if not 200 <= response.status < 300:
                        raise error_for_status(response.status, await _read_capped(response))
                    return await _read_json_and_body(response, into, limit)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable_error(error) from error

    async def upload(
        self, path: str, content: IO[bytes], headers: Mapping[str, str], *, timeout: float
    ) -> dict[str, Any]:
        """Send a file of any size; return the JSON object of a successful answer."""
        headers = self._headers | {"Content-Type": "application/octet-stream"} | dict(headers)
        try:
            async with asyncio.timeout(timeout), self._pool() as http:
                call = http.put(self._url + path, data=content, headers=headers, allow_redirects=False, ssl=self._trust)
                async with call as response:
                    body = await _read_capped(response)
                    status = response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unreachable_error(error) from error
        if not 200 <= status < 300:
            raise error_for_status(status, body)
        return read_json(200, body)

    def _pool(self) -> Any:
        if self._http is None:
            return open_connection_pool()
        return nullcontext(self._http)


async def _read_capped(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER:
            raise answer_too_large()
        parts.append(part)
    return b"".join(parts)


async def _read_json_and_body(response: aiohttp.ClientResponse, into: IO[bytes], limit: int) -> dict[str, Any]:
    """Return the object of the first line and write the rest to the file."""
    head, size = b"", 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit or len(head) > MAX_ANSWER:
            raise answer_too_large()
        if head.endswith(b"\n"):
            await asyncio.to_thread(into.write, part)
            continue
        line, end, rest = part.partition(b"\n")
        head += line + end
        await asyncio.to_thread(into.write, rest)
    return read_json(200, head)


def _unreachable_error(error: Exception) -> ExecutorError:
    """Return the error for a call without an answer, with the reason that a sweep would record."""
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch)):
        said = "The server's certificate is not the one that is trusted."
        return AgentctlForeign(said, reason="certificate", for_staff=_certificate_hint(error))
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, TimeoutError):
        return AgentctlUnreachable("agentctl did not answer in time.", reason="timeout")
    if isinstance(cause, ConnectionRefusedError):
        return AgentctlUnreachable("Nothing is listening at agentctl's address.", reason="refused")
    if isinstance(cause, aiohttp.InvalidURL):
        return AgentctlUnreachable("agentctl's address is not a URL.", reason="bad_url")
    if isinstance(cause, (aiohttp.ServerDisconnectedError, ConnectionError)):
        return AgentctlUnreachable("agentctl closed the connection without an answer.", reason="closed")
    return AgentctlUnreachable(f"agentctl cannot be reached: {type(cause).__name__}", reason="unreachable")


def _certificate_hint(error: aiohttp.ClientError) -> str:
    """Return what operators need to pin the right certificate or to notice an interception."""
    if isinstance(error, aiohttp.ServerFingerprintMismatch):
        return f"It presented sha256:{error.got.hex()}, but only sha256:{error.expected.hex()} is trusted."
    return f"{getattr(error, 'certificate_error', None) or getattr(error, 'os_error', None) or error}."


def _upgrade_error(path: str, status: int) -> Exception:
    """Return the error for a WebSocket that was not opened; aiohttp does not provide the answer's body."""
    if status == 409 and path == "/events":
        return StaleGeneration(status=status, refusal=Code.STALE_GENERATION.value)
    refusals = {400: Code.VALIDATION_ERROR, 404: Code.NOT_FOUND, 409: Code.CONFLICT, 500: Code.INTERNAL_ERROR}
    if status in refusals:
        return AgentctlRefused(f"agentctl refused to open {path}.", status=status, refusal=refusals[status].value)
    return error_for_status(status, b"")


@contextlib.contextmanager
def _outdated_if_not_found() -> Iterator[None]:
    """Take *not found* for an agentctl that lacks the endpoint."""
    try:
        yield
    except AgentctlRefused as error:
        if error.refusal != Code.NOT_FOUND:
            raise
        raise AgentctlOutdated(
            "This needs a newer agentctl than the one that serves this session. Stop the session and start it "
            "again; on another machine, install this release of Kandev there first."
        ) from error


class AgentctlClient:
    """Client of one execution's agentctl, acting as one generation.

    Errors are those of ``HttpClient``. ``trust`` is for https: the certificate that it must show. An ``address`` on
    this machine is an ``AgentctlListener``, or a ``unix:`` URL if its process is not known.
    """

    def __init__(
        self,
        address: str | AgentctlListener,
        token: str,
        execution_id: str,
        *,
        generation: int = 0,
        trust: aiohttp.Fingerprint | bool = True,
        http: aiohttp.ClientSession | None = None,
    ):
        self._execution_id = execution_id
        self.generation = generation
        headers = {"Authorization": f"Bearer {token}", GENERATION_HEADER: str(generation)}
        if isinstance(address, str) and address.startswith(socket_urls.SCHEME):
            address = AgentctlListener(address, None)
        self._wire = HttpClient(address, headers, trust=trust, http=http)

    @classmethod
    def of(cls, execution: ExecutionFacts, http: aiohttp.ClientSession | None = None) -> AgentctlClient:
        """Return the client for an execution's row."""
        return cls(
            listener_for(execution) or execution.agentctl_url,
            bearer_token(execution.auth_token, execution.state),
            execution.id,
            generation=execution.generation,
            trust=tls_trust(execution.config),
            http=http,
        )

    async def status(self, timeout: float = 5.0) -> dict[str, Any]:
        """Return ``protocol.Status``; raises AgentctlForeign if it names another execution."""
        answer = await self._wire.get("/status", timeout=timeout)
        check_execution(answer, self._execution_id)
        return answer

    async def health(self, timeout: float) -> None:
        """Return once agentctl answers; raises AgentctlUnreachable after ``timeout`` seconds."""
        await self._wire.get("/health", timeout=timeout)

    async def start_agent(self, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Start or resume the agent; repeating a ``launch_id`` returns the first result.

        A failed start raises AgentctlRefused, whose ``details["answer"]`` contains ``permanent`` and ``token_valid``.
        """
        return await self._wire.post("/agent/start", body, timeout=timeout)

    async def stop_agent(self, grace: float, intent_id: str, *, delete_transcript: bool = False) -> dict[str, Any]:
        """Stop the agent's whole process tree: TERM, then KILL after ``grace`` seconds.

        With ``delete_transcript`` the answer has ``transcript``: ``{"deleted", "confirmed", "reason"}``.
        """
        body: dict[str, Any] = {"grace": grace, "intent_id": intent_id}
        if delete_transcript:
            body["delete_transcript"] = True
        return await self._wire.post("/agent/stop", body, timeout=grace + 2 * DEFAULT_TIMEOUT)

    async def prompt(
        self,
        message_id: str,
        text: str,
        attachments: Sequence[Mapping[str, Any]] = (),
        prompt_kind: str = "user",
    ) -> dict[str, Any]:
        """Send a prompt and return ``{accepted, duplicate}``; refusals are ``busy`` and ``not_running``."""
        body = {"message_id": message_id, "text": text, "attachments": list(attachments), "prompt_kind": prompt_kind}
        return await self._wire.post("/prompt", body)

    async def steer(
        self, message_id: str, turn: str, text: str, attachments: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, Any]:
        """Hand a text to the running turn of the prompt ``turn``; return ``{accepted, duplicate}``.

        The outcome is a journal line. Refusals: ``not_running``, ``steering_unsupported``, ``no_turn``,
        ``journal_full``; ``not_found`` from an agentctl that does not know this request.
        """
        body = {"message_id": message_id, "turn": turn, "text": text, "attachments": list(attachments)}
        return await self._wire.post("/steer", body)

    async def cancel(self, message_id: str, intent_id: str) -> dict[str, Any]:
        """Cancel the turn of ``message_id``, and no other turn."""
        return await self._wire.post("/cancel", {"message_id": message_id, "intent_id": intent_id})

    async def change_setting(self, change_id: str, setting: str, value: str | bool) -> dict[str, Any]:
        """Have the agent change a setting, once; the outcome is a journal line.

        Refusals: ``not_running``, ``settings_unsupported``.
        """
        return await self._wire.post("/settings", {"change_id": change_id, "setting": setting, "value": value})

    async def answer(
        self, permission_id: str, option_id: str | None, content: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Answer an open permission request or question; None tells the agent that the request was cancelled.

        ``content`` holds the fields of a form.
        """
        body: dict[str, Any] = {"option_id": option_id}
        if content:
            body["content"] = content
        return await self._wire.post(f"/permissions/{quote(permission_id, safe='')}", body)

    async def agent_session(self) -> dict[str, Any]:
        """Return ``{resume_token, last_message_uuid, fingerprint}``; the token is a credential."""
        return await self._wire.get("/agent/session")

    async def ended_with_agent(self) -> list[str]:
        """Return the command lines of the processes that the last agent left running and that were ended with it."""
        return [str(each) for each in (await self._wire.get("/agent/left")).get("processes", [])]

    async def list_files(self, path: str = "") -> dict[str, Any]:
        """List a directory of the workspace: ``{path, entries: [{name, type, size}], truncated}``."""
        return await self._wire.get("/files", {"path": path})

    async def search_files(self, query: str) -> dict[str, Any]:
        """Return the paths with the letters of ``query``: ``{query, entries: [{path, type}], truncated}``.

        Raises AgentctlOutdated if agentctl is of a release that cannot.
        """
        return await self._since_1_1("/files/search", [("query", query)])

    async def read_file(self, path: str) -> dict[str, Any]:
        """Read a file of the workspace: ``{path, size, encoding: "utf-8" | "base64", content, truncated}``."""
        return await self._wire.get("/files/content", {"path": path})

    async def write_file(self, path: str, content: bytes, expected: str | None = None) -> dict[str, Any]:
        """Write a file of the workspace: ``{path, size, hash, created}``.

        ``expected``: the hash of the current content, ``*`` for any content, None for no file.
        """
        headers = {}
        if expected is not None:
            headers["If-Match"] = expected
        sent = await self._wire.call("PUT", "/files/content", params={"path": path}, data=content, headers=headers)
        return read_json(200, sent)

    async def git(self, what: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Query git: ``status``, ``diff`` (path), ``log`` (limit, skip, ref) or ``changes`` (since)."""
        return await self._wire.get(f"/git/{what}", params)

    async def branch_changes(self, base: str) -> dict[str, Any]:
        """Return what the branch has changed since ``base`` (empty: where the session started), as agentctl lists it.

        Raises AgentctlOutdated if agentctl is of a release that cannot.
        """
        return await self._since_1_1("/git/branch", [("base", base)])

    async def branch_hunks(self, base: str, paths: Sequence[str], context: int) -> dict[str, Any]:
        """Return the hunks of some of these files; raises AgentctlOutdated like ``branch_changes``."""
        params = [("base", base), ("context", str(context)), *(("path", path) for path in paths)]
        return await self._since_1_1("/git/hunks", params)

    async def part_changes(self, part: Mapping[str, str], base: str) -> dict[str, Any]:
        """Return what a part of the branch has changed, as ``branch_changes`` does, and ``part_problem``.

        ``part`` is ``{commit}``, or ``{before, after}`` with two snapshots, or empty for what is not committed.
        """
        return await self._since_1_1("/git/part", [*part.items(), ("base", base)])

    async def part_hunks(self, part: Mapping[str, str], paths: Sequence[str], context: int) -> dict[str, Any]:
        """Return the hunks of some of these files; raises AgentctlOutdated like ``branch_changes``."""
        params = [*part.items(), ("context", str(context)), *(("path", path) for path in paths)]
        return await self._since_1_1("/git/part/hunks", params)

    async def show_loss(self, path: str, action: str) -> dict[str, Any]:
        """Return what unstaging or discarding a file would lose; raises AgentctlOutdated like ``branch_changes``."""
        return await self._since_1_1("/git/loss", [("path", path), ("action", action)])

    async def undo(self, path: str, action: str, version: str) -> dict[str, Any]:
        """Unstage or discard exactly what was shown. Refusals: ``file_changed``, ``conflict``."""
        body = {"path": path, "action": action, "version": version}
        with _outdated_if_not_found():
            return await self._wire.post("/git/undo", body, timeout=_GIT_TIMEOUT)

    async def list_selectable(self) -> dict[str, Any]:
        """Return the uncommitted changes with their versions; raises AgentctlOutdated like ``branch_changes``."""
        return await self._since_1_1("/git/selectable", [])

    async def commit_selected(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Commit ``{message, files: [{path, content, version}], author_name?, author_email?}``.

        Refusals: ``file_changed`` if one of them is no longer what was shown, ``conflict``.
        """
        with _outdated_if_not_found():
            return await self._wire.post("/git/commit/selected", body, timeout=120)

    async def _since_1_1(self, path: str, params: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Get from an endpoint that 1.0 lacks, and which itself never answers that something was not found."""
        with _outdated_if_not_found():
            return await self._wire.get(path, params, timeout=_GIT_TIMEOUT)

    async def commit(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Commit in the workspace: ``{message, paths?, author_name?, author_email?}``."""
        return await self._wire.post("/git/commit", body, timeout=120)

    async def snapshot(self) -> dict[str, Any]:
        """Save the working tree in the session's hidden ref."""
        return await self._wire.post("/snapshot", {}, timeout=120)

    async def make_workspace(self) -> bool:
        """Rebuild a deleted worktree; returns False if nothing was missing.

        Refusals: ``worktree_missing`` (nothing is left to rebuild it from), ``git_failed``.
        """
        return (await self._wire.post("/workspace", {}, timeout=_MAKE_TIMEOUT)).get("made") is True

    async def ensure_workspace(self) -> None:
        """Rebuild the worktree if it was deleted under a running agentctl; raises WorkspaceGone, LaunchFailed."""
        if (await self.status())["workspace"]["exists"]:
            return
        try:
            await self.make_workspace()
        except AgentctlRefused as error:
            if error.refusal == Code.WORKTREE_MISSING:
                raise WorkspaceGone(error.message) from error
            raise LaunchFailed(f"The deleted worktree could not be rebuilt: {error.message}") from error

    async def work(self, known: Sequence[str], into: IO[bytes]) -> dict[str, str]:
        """Write a git bundle of the session's work that the commits ``known`` do not contain.

        Returns the commits of its branch and snapshots, by ref; the bundle is empty if nothing is new. Refusals:
        ``worktree_missing``, ``git_failed``.
        """
        body = {"known": list(known)}
        answer = await self._wire.download("/work", body, into, limit=MAX_BUNDLE_BYTES, timeout=_MAKE_TIMEOUT)
        return parse_refs(answer)

    async def start_job(
        self, job_id: str, request: Mapping[str, Any], *, wait: float = 0.0, tail: int | None = None
    ) -> Job:
        """Run a script in the workspace, once: repeating the same id returns that job's progress.

        ``wait`` and ``tail`` are those of ``job``.

        ``request`` is ``{script, environment, cwd, timeout, grace}``: ``cwd`` relative to the workspace, the times in
        seconds, only ``script`` is needed. Refusals: ``validation_error``, ``conflict`` (the id is another request's),
        ``busy`` (too many run), ``worktree_missing``, ``journal_full``.
        """
        answer = await self._wire.post(
            "/jobs", {**request, "job_id": job_id}, _job_params(wait, tail), timeout=wait + DEFAULT_TIMEOUT
        )
        return cast("Job", answer)

    async def job(self, job_id: str, *, wait: float = 0.0, tail: int | None = None) -> Job:
        """Return a job's progress, after at most ``wait`` seconds (25 at most) if it has not ended by then.

        ``tail``: return the last bytes of each stream, by default all that are kept (1 MiB). Refusal: ``job_unknown``
        if this execution has no job of that id.
        """
        path, params = f"/jobs/{quote(job_id, safe='')}", _job_params(wait, tail)
        answer = await self._wire.get(path, params, timeout=wait + DEFAULT_TIMEOUT)
        return cast("Job", answer)

    async def cancel_job(self, job_id: str) -> Job:
        """End a job's whole process tree (TERM, then KILL) and return its result; an ended job is unchanged.

        Refusal: ``job_unknown`` if there is none.
        """
        answer = await self._wire.post(f"/jobs/{quote(job_id, safe='')}/cancel", {}, timeout=2 * DEFAULT_TIMEOUT)
        return cast("Job", answer)

    async def shutdown(self, stop_agent: bool, intent_id: str) -> dict[str, Any]:
        """End agentctl, after a snapshot."""
        return await self._wire.post("/shutdown", {"stop_agent": stop_agent, "intent_id": intent_id}, timeout=120)

    @asynccontextmanager
    async def events(self, after: int, epoch: str) -> AsyncIterator[EventStream]:
        """Stream the journal after line ``after`` of ``epoch``; this closes the streams of older generations."""
        params = {"after": str(after), "epoch": epoch, "generation": str(self.generation)}
        async with self._wire.socket("/events", params) as socket:
            yield EventStream(socket)

    @asynccontextmanager
    async def shell(self, name: str, columns: int, rows: int) -> AsyncIterator[ShellStream]:
        """Open a shell of the workspace, or connect to it; any other reader of it is disconnected."""
        params = {"shell": name, "cols": str(columns), "rows": str(rows)}
        async with self._wire.socket("/shell", params) as socket:
            yield ShellStream(socket)


def listener_for(execution: ExecutionFacts) -> AgentctlListener | None:
    """Return the listener to verify before a token is sent; None if agentctl runs on another machine."""
    if execution.runtime != LOCAL and not execution.agentctl_url.startswith(socket_urls.SCHEME):
        return None
    return AgentctlListener(execution.agentctl_url, recorded_process(execution.state))


def _job_params(wait: float, tail: int | None) -> dict[str, str]:
    params = {"wait": f"{wait:g}"}
    if tail is not None:
        params["tail"] = str(tail)
    return params
