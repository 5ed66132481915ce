"""The HTTP API of a host: create and list instances with the host's token."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiohttp import web

from executors_app import __version__
from executors_app.agentctl.host.instance_requests import parse_observe_timeout, parse_order, parse_proof, parse_uuid
from executors_app.agentctl.host.instances import InstanceManager
from executors_app.agentctl.host.proxy import InstanceProxy
from executors_app.agentctl.http.server import (
    BODY_LIMIT,
    AuthMiddleware,
    error_response,
    json_response,
    parse_commits,
    parse_number,
    read_json_object,
)
from executors_app.agentctl.http.workspace_api import send_work
from executors_app.wire.errors import ExecutorError, RepositoryUnusable, WorkspaceGone
from executors_app.wire.protocol import PROTOCOL_VERSION

_INSTANCE: Final = "execution_id"
_PREFIX: Final = re.compile(r"/instances/[^/]+")
_PERMANENT_ERRORS: Final = (WorkspaceGone, RepositoryUnusable)

InstanceHandler = Callable[[web.Request], Awaitable[Any]]


def build_app(
    auth: HostAuthMiddleware, instances: InstanceManager, proxy: InstanceProxy, boot_id: str
) -> web.Application:
    """Build the application of a host daemon."""
    app = web.Application(middlewares=auth.middlewares(), client_max_size=BODY_LIMIT)
    app.add_routes(_Api(instances, proxy, boot_id).routes())
    return app


class HostAuthMiddleware(AuthMiddleware):
    """Like agentctl's, but with only the digest of its token; ``/instances/{id}/`` accepts the instance's token."""

    def __init__(self, instances: InstanceManager, digest: str, host: str, port: int, names: Collection[str] = ()):
        super().__init__("", host, port, lambda: None, names)
        self._instances, self._digest = instances, digest

    def is_valid_token(self, request: web.Request, bearer: bytes) -> bool:
        """Check the instance's token for requests to an instance, the host's for everything else."""
        if "tail" in request.match_info:
            return self._instances.is_valid_token(_execution_id_of(request), bearer)
        return hmac.compare_digest(hashlib.sha256(bearer).hexdigest(), self._digest)


class _Api:
    def __init__(self, instances: InstanceManager, proxy: InstanceProxy, boot_id: str):
        self._instances, self._proxy, self._boot_id = instances, proxy, boot_id

    def routes(self) -> list[web.RouteDef]:
        """Return all routes."""
        instance, leftover = "/instances/{execution_id}", "/left/{execution_id}"
        return [
            web.get("/health", self._health),
            web.get("/host", _with_api_errors(self._host)),
            web.get("/instances", _with_api_errors(self._list)),
            web.post("/instances", _with_api_errors(self._create)),
            web.delete(instance, _with_api_errors(self._end)),
            web.get(leftover, _with_api_errors(self._leftover)),
            web.get(f"{leftover}/journal", _with_api_errors(self._journal)),
            web.post(f"{leftover}/end", _with_api_errors(self._end_leftovers)),
            web.post(f"{leftover}/work", _with_api_errors(self._work)),
            web.route("*", instance + "/{tail:.*}", self._forward),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return json_response(
            {"status": "ok", "version": PROTOCOL_VERSION, "release": __version__, "boot_id": self._boot_id}
        )

    async def _host(self, request: web.Request) -> Any:
        return {
            "host_id": self._instances.host_id,
            "version": PROTOCOL_VERSION,
            "release": __version__,
            "boot_id": self._boot_id,
        }

    async def _list(self, request: web.Request) -> Any:
        found = await self._instances.observe(parse_observe_timeout(request.query.get("timeout")))
        return {"host_id": self._instances.host_id, "boot_id": self._boot_id, "instances": found}

    async def _create(self, request: web.Request) -> Any:
        order = parse_order(await read_json_object(request))
        return {"host_id": self._instances.host_id, **await self._instances.create(order)}

    async def _end(self, request: web.Request) -> Any:
        body = await read_json_object(request)
        execution_id, proof = _execution_id_of(request), parse_proof(body)
        if body.get("forget") is True:
            ended = await self._instances.forget(execution_id, proof)
        else:
            ended = await self._instances.end(execution_id, proof)
        return {"ended": ended}

    async def _leftover(self, request: web.Request) -> Any:
        return {"resume_token": self._instances.resume_token(_execution_id_of(request))}

    async def _journal(self, request: web.Request) -> Any:
        after, epoch = parse_number(request.query.get("after", "0"), "after"), request.query.get("epoch", "")
        return await asyncio.to_thread(self._instances.journal_page, _execution_id_of(request), after, epoch)

    async def _end_leftovers(self, request: web.Request) -> Any:
        proof = parse_proof(await read_json_object(request))
        return {"ended": await self._instances.end_leftovers(_execution_id_of(request), proof)}

    async def _work(self, request: web.Request) -> web.StreamResponse:
        known = parse_commits(await read_json_object(request))
        packed, bundle = await asyncio.to_thread(self._instances.pack_work, _execution_id_of(request), known)
        return await send_work(request, packed, bundle)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        listener = self._instances.find_listener(_execution_id_of(request))
        return await self._proxy.forward(request, listener, _PREFIX.sub("", request.rel_url.raw_path, count=1))


def _execution_id_of(request: web.Request) -> str:
    return parse_uuid(request.match_info[_INSTANCE], _INSTANCE)


def _with_api_errors(answer: InstanceHandler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Wrap a handler: JSON answers, and 409 or 503 for errors of an instance."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            found = await answer(request)
        except ExecutorError as error:
            status = 503
            if isinstance(error, _PERMANENT_ERRORS):
                status = 409
            return error_response(status, error.code, error.message, {"permanent": error.permanent})
        if isinstance(found, web.StreamResponse):
            return found
        return json_response(found)

    return handle
