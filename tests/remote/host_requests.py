"""Requests to a host daemon, valid and invalid."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from yarl import URL

from executors_app.agentctl_client.client import open_connection_pool, tls_trust
from tests.executors.launches import TOKEN as INSTANCE_TOKEN
from tests.remote.machines import TOKEN, Machine

DEPLOYMENT = "a-deployment"


async def send_request(
    machine: Machine,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str = TOKEN,
    raw: bytes | None = None,
    chunked: bool | None = None,
    headers: Mapping[str, str] = {},
) -> tuple[int, Any]:
    """Send a request; return status and JSON of the response."""
    sent = {"Authorization": f"Bearer {token}", **headers}
    trust = tls_trust({"fingerprint": machine.ready["fingerprint"]})
    content: dict[str, Any] = {}
    if raw is not None:
        content["data"] = BytesIO(raw)
    elif body is not None:
        content["json"] = body
    async with open_connection_pool() as http:
        url = URL(machine.url + path, encoded="%" in path)
        call = http.request(method, url, headers=sent, ssl=trust, allow_redirects=False, chunked=chunked, **content)
        async with call as answer:
            return answer.status, await answer.json()


def instance_request(where: str, /, **changes: Any) -> dict[str, Any]:
    """Return a valid request for an instance, with ``changes`` that may make it invalid."""
    ids = {name: str(uuid.uuid4()) for name in ("execution_id", "session_id", "task_id")}
    return {**ids, "deployment": DEPLOYMENT, "repository": where, "token": INSTANCE_TOKEN, **changes}
