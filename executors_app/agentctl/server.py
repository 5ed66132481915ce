"""The HTTP face of agentctl (interfaces 6): each handler checks, calls the sidecar once, and answers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiohttp import web

from executors_app.agentctl.bodies import (
    flag,
    generation_of,
    identifier,
    number,
    objects,
    read_object,
    seconds,
    span,
    start_request,
    text,
)
from executors_app.agentctl.door import Door, json_answer
from executors_app.agentctl.event_stream import EventStreams
from executors_app.agentctl.jobs.job_process import KEPT
from executors_app.agentctl.jobs.requests import job_request
from executors_app.agentctl.sidecar import Sidecar
from executors_app.agentctl.workspace.api import WorkspaceApi

BODY_LIMIT: Final = 16 << 20
_GRACE: Final = 5.0
LONGEST_WAIT: Final = 25.0
"""Seconds that a request may wait for the end of a job."""

Command = Callable[[web.Request, dict[str, Any]], Awaitable[Any]]
Report = Callable[[], Any]


def build_app(
    sidecar: Sidecar, streams: EventStreams, token: str, host: str, port: int, *, users: Collection[int] | None = None
) -> web.Application:
    """The application of one agentctl that listens on ``host:port``; ``users`` as of ``Door``."""

    def on_contact() -> None:
        sidecar.last_contact = time.monotonic()

    names = () if users is None else ("localhost",)  # a Unix socket has no port
    door = Door(token, host, port, on_contact, names, users=users)
    app = web.Application(middlewares=door.middlewares(), client_max_size=BODY_LIMIT)
    app.add_routes(_Api(sidecar, streams).routes())
    app.add_routes(WorkspaceApi(sidecar.workspace, sidecar.keeper).routes())
    return app


class _Api:
    def __init__(self, sidecar: Sidecar, streams: EventStreams):
        self._sidecar, self._streams = sidecar, streams

    def routes(self) -> list[web.RouteDef]:
        """Every endpoint but those of the workspace."""
        sidecar = self._sidecar
        return [
            web.get("/health", self._report(sidecar.health)),
            web.get("/capabilities", self._report(sidecar.capabilities)),
            web.get("/status", self._report(sidecar.status)),
            web.get("/agent/session", self._report(sidecar.session)),
            web.get("/agent/left", self._report(sidecar.left)),
            web.post("/agent/start", self._command(self._start)),
            web.post("/agent/stop", self._command(self._stop)),
            web.post("/prompt", self._command(self._prompt, status=202)),
            web.post("/cancel", self._command(self._cancel)),
            web.post("/permissions/{id}", self._command(self._answer)),
            web.post("/jobs", self._command(self._start_job)),
            web.get("/jobs/{id}", self._job),
            web.post("/jobs/{id}/cancel", self._command(self._cancel_job)),
            web.post("/shutdown", self._command(self._shutdown)),
            web.get("/events", self._streams.serve, allow_head=False),
        ]

    # -- the three kinds of endpoints --------------------------------------------------------

    def _report(self, report: Report) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            return json_answer(report())

        return handle

    def _command(self, command: Command, status: int = 200) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            generation = generation_of(request)
            body = await read_object(request)
            # After the body has come: nothing may overtake between this check and the command.
            self._sidecar.fence.admit(generation)
            return json_answer(await command(request, body), status)

        return handle

    # -- commands ----------------------------------------------------------------------------

    async def _start(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.start(start_request(body, self._sidecar.execution.workspace))

    async def _stop(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.stop(seconds(body, "grace", _GRACE), identifier(body, "intent_id", ""))

    async def _prompt(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.prompt(
            identifier(body, "message_id"),
            text(body, "text"),
            objects(body, "attachments"),
            identifier(body, "prompt_kind", "user"),
        )

    async def _cancel(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.cancel(identifier(body, "message_id"))

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> Any:
        permission_id = request.match_info["id"]
        if body.get("option_id", "") is None:
            return await self._sidecar.cancel_permission(permission_id)
        return await self._sidecar.answer(permission_id, text(body, "option_id"))

    async def _start_job(self, request: web.Request, body: dict[str, Any]) -> Any:
        return self._sidecar.jobs.start(job_request(body))

    async def _job(self, request: web.Request) -> web.Response:
        wait, tail = span(request.query, "wait", LONGEST_WAIT), number(request.query.get("tail", str(KEPT)), "tail")
        return json_answer(await self._sidecar.jobs.report(request.match_info["id"], wait, tail))

    async def _cancel_job(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.jobs.cancel(request.match_info["id"])

    async def _shutdown(self, request: web.Request, body: dict[str, Any]) -> Any:
        return await self._sidecar.shutdown(flag(body, "stop_agent", default=False), identifier(body, "intent_id", ""))
