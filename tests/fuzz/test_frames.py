"""Any frame that a client sends to a socket of the pages gets a response, and the socket stays open."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.kernel.database_threads import run_in_database
from tests.api.world import PERMISSION, World, make_world
from tests.fuzz.values import FEW, record, text, value
from tests.stream.live.sockets import Socket, connected, of_program, path_of

pytestmark = pytest.mark.django_db(transaction=True)

ACTIONS = ("status", "resume", "prompt", "cancel", "permission.respond")
FRAME = record(
    type=text("request", "ack"),
    id=text(),
    seq=st.integers(),
    action=st.sampled_from([*(f"task.session.{one}" for one in ACTIONS), "ping"]),
    payload=record(
        session_id=text(),
        mode=text("auto", "resume", "fresh_start"),
        message_id=text("m"),
        text=text(),
        permission_id=text(PERMISSION),
        option_id=text("allow"),
        resume_token=text("kwt_x"),
    ),
)
SENT = FRAME.map(json.dumps) | value().map(json.dumps) | st.text(max_size=40)


async def check_answered(socket: Socket, sent: str) -> None:
    await socket.wire.send_input({"type": "websocket.receive", "text": sent})
    await socket.tell({"type": "request", "id": "and-now", "action": "ping"})
    while (frame := await socket.frame(30)).get("id") != "and-now":
        if frame["type"] == "response" and not frame["ok"]:
            assert frame["error"].keys() == {"code", "message", "details"}
            assert frame["error"]["code"] != "internal_error"
    assert frame["ok"]


@pytest.fixture
def world() -> World:
    return make_world()


async def test_any_frame_is_answered(world: World) -> None:
    headers = await run_in_database(of_program, world.member)
    frames: list[str] = []

    @FEW
    @given(sent=SENT)
    def draw(sent: str) -> None:
        frames.append(sent)

    draw()
    async with connected(path_of(world.session), headers) as socket:
        await socket.frame()
        for sent in frames:
            await check_answered(socket, sent)
