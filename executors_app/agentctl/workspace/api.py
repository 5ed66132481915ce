"""The HTTP face of the workspace: files, git, shells and snapshots, with and without an agent.

None of it is a command of the lease (rule 11), so no generation is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any, Final

import orjson
from aiohttp import web

from executors_app.agentctl.bodies import commits_of, number, read_object, text, texts
from executors_app.agentctl.door import json_answer
from executors_app.agentctl.protocol import Code
from executors_app.agentctl.refusals import Refused, invalid
from executors_app.agentctl.workspace import changes
from executors_app.agentctl.workspace.files import list_directory, read_content
from executors_app.agentctl.workspace.keeper import Keeper
from executors_app.agentctl.workspace.shell_socket import ShellSockets
from executors_app.agentctl.workspace.workspace import Workspace
from executors_app.agentctl.workspace.writing import ANYTHING, write_content

LONGEST_LOG: Final = 200
LONGEST_MESSAGE: Final = 64 << 10
_PART: Final = 1 << 18
_HASH: Final = re.compile(r'"?([0-9a-f]{64})"?')
Handler = Callable[[web.Request], Awaitable[web.Response]]


class WorkspaceApi:
    """Each handler checks, looks once, and answers."""

    def __init__(self, workspace: Workspace, keeper: Keeper):
        self._workspace, self._keeper = workspace, keeper

    def routes(self) -> list[web.RouteDef]:
        """Every endpoint of the workspace."""
        return [
            web.get("/files", self._at_path(list_directory)),
            web.get("/files/content", self._at_path(read_content)),
            web.put("/files/content", self._write),
            web.get("/git/status", self._status),
            web.get("/git/diff", self._diff),
            web.get("/git/log", self._log),
            web.get("/git/changes", self._changes),
            web.post("/git/commit", self._commit),
            web.get("/shell", ShellSockets(self._workspace.shells).serve, allow_head=False),
            web.post("/workspace", self._make),
            web.post("/work", self._work),
            web.post("/snapshot", self._snapshot),
            web.post("/snapshot/restore", self._restore),
        ]

    async def _on_workspace(self, look: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
        """Look; where there is no workspace to look at, that is the answer, and not what came of it."""
        try:
            return await self._workspace.call(look, *args)
        except Refused as error:
            if self._workspace.root.is_dir():
                raise
            raise Refused(Code.WORKTREE_MISSING, "the directory of the workspace is not there any more") from error

    def _at_path(self, look: Callable[..., dict[str, Any]]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            path = request.query.get("path", "")
            return json_answer(await self._on_workspace(look, self._workspace.root, path))

        return handle

    async def _write(self, request: web.Request) -> web.Response:
        content, expected = await request.read(), _expected(request)
        path = request.query.get("path", "")
        answer = await self._on_workspace(write_content, self._workspace.root, path, content, expected)
        return json_answer(answer, 201 if answer["created"] else 200)

    async def _status(self, request: web.Request) -> web.Response:
        answer = await self._on_workspace(changes.status, self._workspace.git)
        self._workspace.dirty = not answer["clean"]
        return json_answer(answer)

    async def _diff(self, request: web.Request) -> web.Response:
        path = request.query.get("path", "")
        return json_answer(await self._on_workspace(changes.diff, self._workspace.git, path))

    async def _log(self, request: web.Request) -> web.Response:
        query = request.query
        limit, skip = number(query.get("limit", "50"), "limit"), number(query.get("skip", "0"), "skip")
        if not 1 <= limit <= LONGEST_LOG:
            raise invalid(f"limit must be between 1 and {LONGEST_LOG}", field="limit")
        return json_answer(
            await self._on_workspace(changes.log, self._workspace.git, limit, skip, query.get("ref", ""))
        )

    async def _changes(self, request: web.Request) -> web.Response:
        return json_answer(await self._keeper.changed_since(request.query.get("since", "")))

    async def _commit(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        message = text(body, "message")
        if len(message) > LONGEST_MESSAGE or "\0" in message:
            raise invalid(f"message must have {LONGEST_MESSAGE} characters at most, and no U+0000", field="message")
        only, author = texts(body, "paths"), (text(body, "author_name", ""), text(body, "author_email", ""))
        answer = await self._on_workspace(changes.commit, self._workspace.git, message, author, only)
        await self._status(request)
        return json_answer(answer)

    async def _make(self, request: web.Request) -> web.Response:
        return json_answer(await self._workspace.call(self._workspace.make_again))

    async def _work(self, request: web.Request) -> web.StreamResponse:
        known = commits_of(await read_object(request), "known")
        packed, bundle = await self._workspace.call(self._workspace.pack, known)
        return await send_work(request, packed, bundle)

    async def _snapshot(self, request: web.Request) -> web.Response:
        taken = await self._keeper.take("asked")
        return json_answer(taken.to_json())

    async def _restore(self, request: web.Request) -> web.Response:
        body = await read_object(request)
        return json_answer(await self._keeper.restore(text(body, "commit", "")))


async def send_work(request: web.Request, packed: Mapping[str, Any], bundle: IO[bytes]) -> web.StreamResponse:
    """Answer with one line of JSON as ``workspace_root.pack`` returns it, then the git bundle, which is closed."""
    with bundle:
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        await response.write(orjson.dumps(packed) + b"\n")
        while part := bundle.read(_PART):
            await response.write(part)
    return response


def _expected(request: web.Request) -> str | None:
    """What the writer takes to be there: a hash, ``*`` for anything, None for nothing."""
    given = request.headers.getall("If-Match", [])
    if not given:
        return None
    found = _HASH.fullmatch(given[0].strip()) if len(given) == 1 else None
    if found is None and given != [ANYTHING]:
        raise invalid("If-Match must be the hash of the file, or *", field="If-Match")
    return found[1] if found else ANYTHING
