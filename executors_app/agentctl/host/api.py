"""The HTTP face of a host: instances are made and listed by the host's own token, each is spoken to by its own."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from aiohttp import web

from executors_app.agentctl.bodies import commits_of, number, read_object
from executors_app.agentctl.door import Door, error_answer, json_answer
from executors_app.agentctl.host.instances import Instances
from executors_app.agentctl.host.orders import look_timeout, order_of, proof_of, uuid_of
from executors_app.agentctl.host.proxy import Proxy
from executors_app.agentctl.protocol import PROTOCOL_VERSION
from executors_app.agentctl.server import BODY_LIMIT
from executors_app.agentctl.workspace.api import send_work
from executors_app.errors import ExecutorError, RepositoryUnusable, WorkspaceGone

_INSTANCE: Final = "execution_id"
_PREFIX: Final = re.compile(r"/instances/[^/]+")
_IMPOSSIBLE: Final = (WorkspaceGone, RepositoryUnusable)

Answer = Callable[[web.Request], Awaitable[Any]]


def build_app(door: HostDoor, instances: Instances, proxy: Proxy, boot_id: str) -> web.Application:
    """The application of one host daemon."""
    app = web.Application(middlewares=door.middlewares(), client_max_size=BODY_LIMIT)
    app.add_routes(_Api(instances, proxy, boot_id).routes())
    return app


class HostDoor(Door):
    """As agentctl's, but knows its own token by the digest alone; below ``/instances/{id}/`` the instance's opens."""

    def __init__(self, instances: Instances, digest: str, host: str, port: int, names: Collection[str] = ()):
        super().__init__("", host, port, lambda: None, names)
        self._instances, self._digest = instances, digest

    def admits(self, request: web.Request, bearer: bytes) -> bool:
        """The instance's token for what goes to an instance, the host's for everything else."""
        if "tail" in request.match_info:
            return self._instances.admits(_instance_of(request), bearer)
        return hmac.compare_digest(hashlib.sha256(bearer).hexdigest(), self._digest)


class _Api:
    def __init__(self, instances: Instances, proxy: Proxy, boot_id: str):
        self._instances, self._proxy, self._boot_id = instances, proxy, boot_id

    def routes(self) -> list[web.RouteDef]:
        """Every endpoint."""
        one, left = "/instances/{execution_id}", "/left/{execution_id}"
        return [
            web.get("/health", self._health),
            web.get("/host", _answering(self._host)),
            web.get("/instances", _answering(self._look)),
            web.post("/instances", _answering(self._create)),
            web.delete(one, _answering(self._end)),
            web.get(left, _answering(self._left)),
            web.get(f"{left}/journal", _answering(self._journal)),
            web.post(f"{left}/end", _answering(self._end_leftovers)),
            web.post(f"{left}/work", _answering(self._work)),
            web.route("*", one + "/{tail:.*}", self._pass_on),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return json_answer({"status": "ok", "version": PROTOCOL_VERSION, "boot_id": self._boot_id})

    async def _host(self, request: web.Request) -> Any:
        known = {"host_id": self._instances.host_id, "version": PROTOCOL_VERSION, "boot_id": self._boot_id}
        return {**known, "launch_tokens": True}  # a daemon that does not say so wants one token for ever

    async def _look(self, request: web.Request) -> Any:
        found = await self._instances.look(look_timeout(request.query.get("timeout")))
        return {"host_id": self._instances.host_id, "boot_id": self._boot_id, "instances": found}

    async def _create(self, request: web.Request) -> Any:
        order = order_of(await read_object(request))
        return {"host_id": self._instances.host_id, **await self._instances.create(order)}

    async def _end(self, request: web.Request) -> Any:
        body = await read_object(request)
        end = self._instances.forget if body.get("forget") is True else self._instances.end
        return {"ended": await end(_instance_of(request), proof_of(body))}

    async def _left(self, request: web.Request) -> Any:
        return {"resume_token": self._instances.resume_token(_instance_of(request))}

    async def _journal(self, request: web.Request) -> Any:
        after, epoch = number(request.query.get("after", "0"), "after"), request.query.get("epoch", "")
        return await asyncio.to_thread(self._instances.journal_page, _instance_of(request), after, epoch)

    async def _end_leftovers(self, request: web.Request) -> Any:
        proof = proof_of(await read_object(request))
        return {"ended": await self._instances.end_leftovers(_instance_of(request), proof)}

    async def _work(self, request: web.Request) -> web.StreamResponse:
        known = commits_of(await read_object(request), "known")
        packed, bundle = await asyncio.to_thread(self._instances.work_of, _instance_of(request), known)
        return await send_work(request, packed, bundle)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        listener = self._instances.listener_of(_instance_of(request))
        return await self._proxy.pass_on(request, listener, _PREFIX.sub("", request.rel_url.raw_path, count=1))


def _instance_of(request: web.Request) -> str:
    return uuid_of(request.match_info[_INSTANCE], _INSTANCE)


def _answering(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """With what an instance cannot be had for as an error of its own."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            found = await answer(request)
        except ExecutorError as error:
            status = 409 if isinstance(error, _IMPOSSIBLE) else 503
            return error_answer(status, error.code, error.message, {"permanent": error.permanent})
        return found if isinstance(found, web.StreamResponse) else json_answer(found)

    return handle
