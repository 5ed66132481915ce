"""The HTTP API of the workspace: files, git, snapshots, and shells over WebSockets. It needs no running agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any, Final, TypeVar

import orjson
from aiohttp import WSCloseCode, WSMsgType, web

from executors_app.agentctl.http.server import (
    CLOSE_TIMEOUT,
    json_response,
    parse_commits,
    parse_number,
    parse_text,
    parse_texts,
    read_json_object,
    websocket_for,
)
from executors_app.agentctl.workspace import branch_review, changes, selected_commit, uncommitted
from executors_app.agentctl.workspace.agent_preparation import report_discards
from executors_app.agentctl.workspace.discarded_files import split_discarded
from executors_app.agentctl.workspace.file_writing import ANY_CONTENT, write_content
from executors_app.agentctl.workspace.files import list_directory, read_content
from executors_app.agentctl.workspace.review_parts import Part
from executors_app.agentctl.workspace.shells import Shell, ShellManager, ShellReader, check_size
from executors_app.agentctl.workspace.snapshot_service import SnapshotService
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.machine.git.branch_changes import MAX_CONTEXT
from executors_app.wire.protocol import CLOSE_OVERTAKEN, ApiError, Code, validation_error

logger = logging.getLogger(__name__)

_MESSAGE_LIMIT: Final = 1 << 20
_FLUSH_DELAY: Final = 0.004
"""Seconds to gather output after each frame; a single echo is sent at once."""


class ShellSockets:
    """Serves the shells of one session."""

    def __init__(self, shells: ShellManager):
        self._shells = shells

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Open or find a shell and follow it until either end closes; raises ApiError before the upgrade."""
        query = request.query
        socket = websocket_for(request, _MESSAGE_LIMIT)
        columns, rows = (
            parse_number(query.get(side, default), side) for side, default in (("cols", "80"), ("rows", "24"))
        )
        shell = self._shells.open(query.get("shell", "main"), columns, rows)
        await socket.prepare(request)
        reader = shell.attach_reader()
        try:
            await _follow(socket, shell, reader)
        finally:
            shell.detach_reader(reader)
        if not reader.overtaken:
            self._shells.forget(shell)
        return socket


async def _follow(socket: web.WebSocketResponse, shell: Shell, reader: ShellReader) -> None:
    sender = asyncio.create_task(_send(socket, shell, reader), name="shell out")
    receiver = asyncio.create_task(_receive(socket, shell), name="shell in")
    try:
        await asyncio.wait((sender, receiver), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sender, receiver):
            task.cancel()
        await asyncio.wait((sender, receiver))
        code = CLOSE_OVERTAKEN if reader.overtaken else WSCloseCode.OK
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await socket.close(code=code)


async def _send(socket: web.WebSocketResponse, shell: Shell, reader: ShellReader) -> None:
    hello = {
        "shell": shell.name,
        "offset": reader.position,
        "running": shell.is_running,
        "new": reader.is_first,
        "replay": reader.replay_bytes,
    }
    try:
        await socket.send_str(orjson.dumps(hello).decode())
        reader.request_redraw()
        while data := await reader.read():
            # Returns once the socket has taken it, so a slow client delays only its own shell.
            await socket.send_bytes(data)
            reader.mark_sent()
            await asyncio.sleep(_FLUSH_DELAY)
        if not reader.overtaken:
            await socket.send_str(orjson.dumps({"exit": shell.exit_code}).decode())
    except (ConnectionError, RuntimeError):
        pass  # the client has left


async def _receive(socket: web.WebSocketResponse, shell: Shell) -> None:
    async for message in socket:
        if message.type == WSMsgType.BINARY:
            await shell.write(message.data)
        elif message.type == WSMsgType.TEXT:
            try:
                shell.resize(*_parse_size(message.data))
            except ApiError as error:
                with contextlib.suppress(ConnectionError, RuntimeError):
                    await socket.send_str(orjson.dumps({"error": error.message}).decode())


def _parse_size(text: str) -> tuple[int, int]:
    """Parse ``{"resize": [cols, rows]}``; raises ApiError for anything else."""
    try:
        message: Any = orjson.loads(text)
        columns, rows = message["resize"]
    except (ValueError, TypeError, KeyError):
        raise validation_error('expected {"resize": [cols, rows]}') from None
    check_size(columns, rows)
    return columns, rows


MAX_LOG_ENTRIES: Final = 200
MAX_MESSAGE_BYTES: Final = 64 << 10
_CHUNK_BYTES: Final = 1 << 18
_HASH: Final = re.compile(r'"?([0-9a-f]{64})"?')
Answer = TypeVar("Answer")
Handler = Callable[[web.Request], Awaitable[web.Response]]


class WorkspaceApi:
    """The endpoints of the workspace."""

    def __init__(self, workspace: Workspace, keeper: SnapshotService):
        self._workspace, self._keeper = workspace, keeper

    def routes(self) -> list[web.RouteDef]:
        """Return all routes of the workspace."""
        return [
            web.get("/files", self._at_path(list_directory)),
            web.get("/files/search", self._search),
            web.get("/files/content", self._at_path(read_content)),
            web.put("/files/content", self._write),
            web.get("/git/status", self._status),
            web.get("/git/diff", self._diff),
            web.get("/git/log", self._log),
            web.get("/git/changes", self._changes),
            web.get("/git/branch", self._branch),
            web.get("/git/hunks", self._hunks),
            web.get("/git/part", self._part),
            web.get("/git/part/hunks", self._part_hunks),
            web.post("/git/commit", self._commit),
            web.get("/git/selectable", self._selectable),
            web.post("/git/commit/selected", self._commit_selected),
            web.get("/git/loss", self._loss),
            web.post("/git/undo", self._undo),
            web.get("/shell", ShellSockets(self._workspace.shells).serve, allow_head=False),
            web.post("/workspace", self._make),
            web.post("/work", self._work),
            web.post("/snapshot", self._snapshot),
            web.post("/snapshot/restore", self._restore),
        ]

    async def _on_workspace(self, read: Callable[..., Answer], *args: Any) -> Answer:
        """Run something in the workspace; if the workspace is missing, report that instead of its error."""
        try:
            return await self._workspace.call(read, *args)
        except ApiError as error:
            if self._workspace.root.is_dir():
                raise
            raise ApiError(Code.WORKTREE_MISSING, "the directory of the workspace no longer exists") from error

    def _at_path(self, read: Callable[..., dict[str, Any]]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            path = request.query.get("path", "")
            return json_response(await self._on_workspace(read, self._workspace.root, path))

        return handle

    async def _search(self, request: web.Request) -> web.Response:
        query = request.query.get("query", "")
        return json_response(await self._on_workspace(self._workspace.file_search.search, query))

    async def _write(self, request: web.Request) -> web.Response:
        content, expected = await request.read(), _expected_hash(request)
        path = request.query.get("path", "")
        answer = await self._on_workspace(write_content, self._workspace.root, path, content, expected)
        self._keeper.after_change()
        if answer["created"]:
            return json_response(answer, 201)
        return json_response(answer)

    async def _status(self, request: web.Request) -> web.Response:
        answer = await self._on_workspace(changes.git_status, self._workspace.git)
        if any(split_discarded(path) for path in answer["untracked"]):
            for notice in await self._on_workspace(report_discards, self._workspace.git):
                self._keeper.tell(notice)
            answer = await self._on_workspace(changes.git_status, self._workspace.git)
        self._workspace.dirty = not answer["clean"]
        return json_response(answer)

    async def _diff(self, request: web.Request) -> web.Response:
        path = request.query.get("path", "")
        return json_response(await self._on_workspace(changes.git_diff, self._workspace.git, path))

    async def _log(self, request: web.Request) -> web.Response:
        query = request.query
        limit, skip = parse_number(query.get("limit", "50"), "limit"), parse_number(query.get("skip", "0"), "skip")
        if not 1 <= limit <= MAX_LOG_ENTRIES:
            raise validation_error(f"limit must be between 1 and {MAX_LOG_ENTRIES}", field="limit")
        return json_response(
            await self._on_workspace(changes.git_log, self._workspace.git, limit, skip, query.get("ref", ""))
        )

    async def _changes(self, request: web.Request) -> web.Response:
        return json_response(await self._keeper.changed_since(request.query.get("since", "")))

    async def _branch(self, request: web.Request) -> web.Response:
        requested = request.query.get("base", "")
        return json_response(await self._on_workspace(self._workspace.list_branch_changes, requested))

    async def _hunks(self, request: web.Request) -> web.Response:
        paths, context = _requested_hunks(request)
        base = request.query.get("base", "")
        return json_response(await self._on_workspace(self._workspace.branch_hunks, base, paths, context))

    async def _part(self, request: web.Request) -> web.Response:
        part, owner, base = Part.parse(request.query), self._keeper.session_id, request.query.get("base", "")
        return json_response(await self._on_workspace(self._workspace.list_part_changes, part, owner, base))

    async def _part_hunks(self, request: web.Request) -> web.Response:
        part, owner = Part.parse(request.query), self._keeper.session_id
        paths, context = _requested_hunks(request)
        return json_response(await self._on_workspace(self._workspace.part_hunks, part, owner, paths, context))

    async def _commit(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        message, author = _parse_message(body)
        only = parse_texts(body, "paths")
        answer = await self._on_workspace(changes.create_commit, self._workspace.git, message, author, only)
        return await self._committed(request, answer)

    async def _committed(self, request: web.Request, answer: dict[str, Any]) -> web.Response:
        """Respond with a commit, whatever becomes of the status that is read after it: it has been created."""
        self._keeper.after_change()
        with contextlib.suppress(ApiError, OSError):
            await self._status(request)
        return json_response(answer)

    async def _selectable(self, request: web.Request) -> web.Response:
        return json_response(await self._on_workspace(selected_commit.list_selectable, self._workspace.git))

    async def _commit_selected(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        message, author = _parse_message(body)
        files = selected_commit.parse_selected(body)
        commit = selected_commit.commit_selected
        answer = await self._on_workspace(commit, self._workspace.git, message, author, files)
        return await self._committed(request, answer)

    async def _loss(self, request: web.Request) -> web.Response:
        path, action = request.query.get("path", ""), uncommitted.parse_action(request.query.get("action", ""))
        return json_response(await self._on_workspace(uncommitted.show_loss, self._workspace.git, path, action))

    async def _undo(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        path, version = parse_text(body, "path"), parse_text(body, "version")
        action = uncommitted.parse_action(parse_text(body, "action"))
        answer = await self._on_workspace(uncommitted.carry_out, self._workspace.git, path, action, version)
        self._keeper.after_change()
        return json_response(answer)

    async def _make(self, request: web.Request) -> web.Response:
        return json_response(await self._workspace.call(self._workspace.rebuild_workspace))

    async def _work(self, request: web.Request) -> web.StreamResponse:
        known = parse_commits(await read_json_object(request))
        packed, bundle = await self._workspace.call(self._workspace.pack_work, known)
        return await send_work(request, packed, bundle)

    async def _snapshot(self, request: web.Request) -> web.Response:
        return json_response(await self._keeper.take("asked"))

    async def _restore(self, request: web.Request) -> web.Response:
        body = await read_json_object(request)
        return json_response(await self._keeper.restore(parse_text(body, "commit", "")))


async def send_work(request: web.Request, packed: Mapping[str, Any], bundle: IO[bytes]) -> web.StreamResponse:
    """Send the result of ``workspace_root.pack_work`` as one line of JSON, then the git bundle, and close it."""
    with bundle:
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        await response.write(orjson.dumps(packed) + b"\n")
        while part := bundle.read(_CHUNK_BYTES):
            await response.write(part)
    return response


def _parse_message(body: Mapping[str, Any]) -> tuple[str, tuple[str, str]]:
    """Return the message of a commit, and name and address of its author; raises ApiError."""
    message = parse_text(body, "message")
    if len(message) > MAX_MESSAGE_BYTES or "\0" in message:
        raise validation_error(
            f"message may have at most {MAX_MESSAGE_BYTES} characters and no U+0000", field="message"
        )
    return message, (parse_text(body, "author_name", ""), parse_text(body, "author_email", ""))


def _requested_hunks(request: web.Request) -> tuple[list[str], int]:
    """Return the paths of a request, and the number of lines around changes; raises ApiError."""
    paths = branch_review.parse_paths(request.query.getall("path", []))
    context = parse_number(request.query.get("context", "3"), "context")
    if not 0 <= context <= MAX_CONTEXT:
        raise validation_error(f"context must be between 0 and {MAX_CONTEXT}", field="context")
    return paths, context


def _expected_hash(request: web.Request) -> str | None:
    """Return the expected content of If-Match: a hash, ``*`` for any, None for no file."""
    headers = request.headers.getall("If-Match", [])
    if not headers:
        return None
    found = None
    if len(headers) == 1:
        found = _HASH.fullmatch(headers[0].strip())
    if found is None and headers != [ANY_CONTENT]:
        raise validation_error("If-Match must be the hash of the file, or *", field="If-Match")
    if found:
        return found[1]
    return ANY_CONTENT
