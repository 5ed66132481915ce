"""The bodies of requests to an agentctl: whoever has its token decides what they contain."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from executors_app.agentctl.http.server import BODY_LIMIT
from executors_app.wire.protocol import GENERATION_HEADER
from tests.agentctl.running import agentctl
from tests.entrances.shapes import SIZES, many_fields, mixture, nested
from tests.growth import measure_growth

BODIES: Final[dict[str, Callable[[int], Any]]] = {
    "/agent/start": lambda size: {
        "launch_id": "l1",
        "argv": ["/none/such", mixture(size // 3)],
        "env": {f"NAME_{number}": "x" for number in range(size // 50)},
        "mcp_servers": nested(size // 3),
    },
    "/agent/stop": lambda size: {"grace": mixture(size)},
    "/prompt": lambda size: {"message_id": "m1", "text": mixture(size), "attachments": nested(size // 3)},
    "/cancel": lambda size: {"message_id": mixture(size)},
    "/settings": lambda size: {"change_id": "c1", "setting": mixture(size // 2), "value": mixture(size // 2)},
    "/permissions/x": lambda size: {"option_id": mixture(size // 2), "content": nested(size // 2)},
    "/jobs": lambda size: {"job_id": "j1", "argv": nested(size // 2), "env": many_fields(size // 2)},
    "/jobs/x/cancel": many_fields,
    "/shutdown": nested,
}


@pytest.mark.parametrize("path", BODIES)
async def test_body_costs_at_most_in_proportion_to_its_size(path: str, tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running:
        headers, loop = {**running.headers, GENERATION_HEADER: "1"}, asyncio.get_running_loop()

        async def post(data: bytes) -> None:
            async with running.http.post(running.url + path, data=data, headers=headers) as response:
                assert (await response.json()).keys() == {"code", "message", "details"}
                assert response.status in range(400, 503)

        def measure() -> None:
            growth = measure_growth(
                lambda data: asyncio.run_coroutine_threadsafe(post(data), loop).result(),
                lambda size: orjson.dumps(BODIES[path](size)),
                sizes=SIZES,
                pools=(),
            )
            growth.assert_bounded()

        await asyncio.to_thread(measure)


async def test_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running:
        data = io.BytesIO(b'{"text": "' + b"x" * BODY_LIMIT + b'"}')
        headers = {**running.headers, GENERATION_HEADER: "1"}
        async with running.http.post(f"{running.url}/prompt", data=data, headers=headers) as response:
            assert response.status == 413
