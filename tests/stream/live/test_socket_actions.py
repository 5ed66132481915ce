"""Requests over a socket and their error responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sessions_app.accounts.models import TeamRole
from sessions_app.board.services.tasks import create_session
from sessions_app.kernel.database_threads import run_in_database
from sessions_app.models import Intent, Prompt, TaskSession
from tests.api.world import PERMISSION, World, client_of
from tests.stream.live.sockets import Socket, connected, of_page, of_program, path_of, say


@pytest.fixture
async def socket(world: World) -> AsyncIterator[Socket]:
    headers = await run_in_database(of_program, world.member)
    async with connected(path_of(world.session), headers) as opened:
        await opened.frame()
        yield opened


BAD = [
    ("no json", "{", None, "validation_error"),
    ("nothing", "", None, "validation_error"),
    ("not an object", "[1]", None, "validation_error"),
    ("deep", "[" * 100_000, None, "validation_error"),
    ("no type", '{"id": "a"}', "a", "validation_error"),
    ("unknown type", '{"type": "shout", "id": 7}', 7, "validation_error"),
    ("no action", '{"type": "request", "id": "a"}', "a", "validation_error"),
    ("unknown action", '{"type": "request", "id": "a", "action": "dance"}', "a", "validation_error"),
    ("action of another kind", '{"type": "request", "id": {}, "action": ["ping"]}', None, "validation_error"),
    ("payload of another kind", '{"type": "request", "action": "task.session.status", "payload": []}', None,
     "validation_error"),
    ("ack of nothing", '{"type": "ack"}', None, "validation_error"),
    ("ack of a truth", '{"type": "ack", "seq": true}', None, "validation_error"),
    ("larger than 1 MiB", '{"type": "request", "id": "' + "é" * 524_288 + '"}', None, "too_large"),
]  # fmt: skip


async def test_malformed_frame_gets_an_error_and_the_socket_stays_open(socket: Socket) -> None:
    found = {}
    for row, text, _, _ in BAD:
        await socket.wire.send_input({"type": "websocket.receive", "text": text})
        frame = await socket.frame()
        assert (frame["type"], frame["ok"]) == ("response", False)
        assert frame["error"].keys() == {"code", "message", "details"}
        found[row] = (frame["id"], frame["error"]["code"])
        assert (await socket.ask("ping"))["ok"]
    assert found == {row: (name, code) for row, _, name, code in BAD}


async def test_binary_frame_gets_an_error_and_the_socket_stays_open(socket: Socket) -> None:
    await socket.wire.send_input({"type": "websocket.receive", "bytes": b"\0\1"})
    assert (await socket.frame())["error"]["code"] == "validation_error"
    assert (await socket.ask("ping"))["ok"]


async def test_ping_is_answered(socket: Socket) -> None:
    assert await socket.ask("ping") == {"type": "response", "id": "q", "ok": True, "result": {}}


async def test_status_equals_that_of_the_api(world: World, socket: Socket) -> None:
    answer = await socket.ask("task.session.status")
    assert answer["result"] == await run_in_database(lambda: client_of(world.member).get(world.url("status/")).json())


async def test_prompt_sent_twice_is_queued_once(world: World, socket: Socket) -> None:
    request = {"message_id": "m-1", "text": "Paint it green"}
    first, second = [await socket.ask("task.session.prompt", request) for _ in range(2)]
    assert first["ok"]
    assert first == second
    assert first["result"]["message_id"] == "m-1"
    assert await run_in_database(lambda: [row.text for row in Prompt.objects.all()]) == ["Paint it green"]


@pytest.mark.parametrize(
    "payload", [{}, {"message_id": "m"}, {"message_id": 1, "text": "a"}, {"message_id": "m", "text": "a\0b"}]
)
async def test_invalid_prompt_is_rejected_by_field(socket: Socket, payload: dict[str, Any]) -> None:
    answer = await socket.ask("task.session.prompt", payload)
    assert answer["error"]["code"] == "validation_error"
    assert answer["error"]["details"].keys() <= {"message_id", "text"}


async def test_prompt_may_name_its_session_but_no_unknown_field(world: World, socket: Socket) -> None:
    request = {"message_id": "m-1", "text": "Paint it green", "session_id": str(world.session.id)}
    assert (await socket.ask("task.session.prompt", {**request, "attachments": []}))["error"]["details"].keys() == {
        "attachments"
    }
    assert (await socket.ask("task.session.prompt", request))["ok"]


async def test_resume_writes_a_start_intent_and_returns_the_status(world: World, socket: Socket) -> None:
    await run_in_database(lambda: Intent.objects.all().delete())
    answer = await socket.ask("task.session.resume", {"mode": "auto"})
    assert answer["result"]["status"]["starting"]
    assert await run_in_database(lambda: [(row.kind, row.by) for row in Intent.objects.select_related("by")]) == [
        ("start", world.member)
    ]


async def test_refused_resume_returns_the_error_of_the_api(world: World, socket: Socket) -> None:
    request = {"mode": "auto"}
    await run_in_database(lambda: TaskSession.objects.filter(id=world.session.id).update(state="COMPLETED"))
    reply = await socket.ask("task.session.resume", request)
    answer = await run_in_database(lambda: client_of(world.member).post(world.url("resume/"), request, format="json"))
    assert answer.status_code == 409
    assert reply["error"] == answer.json()


async def test_cancel_without_a_turn_cancels_nothing(socket: Socket) -> None:
    answer = await socket.ask("task.session.cancel")
    assert (answer["ok"], answer["result"]["cancelling"]) == (True, False)


async def test_permission_can_be_answered(world: World, socket: Socket) -> None:
    key = await run_in_database(world.token)
    request = {"permission_id": PERMISSION, "option_id": "allow", "resume_token": key}
    answer = await socket.ask("task.session.permission.respond", request)
    assert answer["result"]["id"] == PERMISSION
    orders = await run_in_database(lambda: [row.payload for row in Intent.objects.filter(kind="answer")])
    assert orders == [{"permission_id": PERMISSION, "option_id": "allow"}]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"permission_id": "other", "option_id": "allow"}, "not_found"),
        ({"permission_id": PERMISSION, "option_id": "burn"}, "validation_error"),
        ({"permission_id": PERMISSION, "option_id": "allow", "resume_token": "kwt_guess"}, "token_invalid"),
        ({"permission_id": PERMISSION, "option_id": "allow", "resume_token": None}, "validation_error"),
        ({"option_id": "allow"}, "validation_error"),
    ],
)
async def test_invalid_permission_answer_is_rejected(
    world: World, socket: Socket, payload: dict[str, Any], code: str
) -> None:
    payload = {"resume_token": await run_in_database(world.token), **payload}
    assert (await socket.ask("task.session.permission.respond", payload))["error"]["code"] == code


WRITES = ["task.session.resume", "task.session.prompt", "task.session.cancel", "task.session.permission.respond"]


@pytest.mark.parametrize("action", WRITES)
async def test_viewer_can_read_but_not_write(world: World, socket: Socket, action: str) -> None:
    role = {"user": world.member, "team": world.team, "role": TeamRole.Role.VIEWER}
    await run_in_database(lambda: TeamRole.objects.create(**role))
    assert (await socket.ask(action))["error"]["code"] == "permission_denied"
    assert (await socket.ask("task.session.status"))["ok"]


async def test_read_only_token_can_read_but_not_write(world: World) -> None:
    headers = await run_in_database(of_program, world.staff, "read")
    async with connected(path_of(world.session), headers) as socket:
        await socket.frame()
        for action in WRITES:
            assert (await socket.ask(action))["error"]["code"] == "permission_denied"
        assert (await socket.ask("task.session.status"))["ok"]
    async with connected(f"/ws/sessions/{world.session.id}/shell/", headers) as shell:
        assert await shell.close_code() == 4403


async def test_member_who_left_the_team_gets_not_found(world: World, socket: Socket) -> None:
    await run_in_database(world.member.groups.clear)
    assert (await socket.ask("task.session.status"))["error"]["code"] == "not_found"


@pytest.fixture
def second(world: World) -> TaskSession:
    return create_session(world.member, world.task, world.profile, world.executor)


async def test_session_socket_serves_no_other_session(socket: Socket, second: TaskSession) -> None:
    answer = await socket.ask("task.session.status", {"session_id": str(second.id)})
    assert answer["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("named", "code"), [("none", "validation_error"), (None, "validation_error"), (5, "validation_error")]
)
async def test_task_socket_requires_a_session_id(world: World, named: Any, code: str) -> None:
    headers = await run_in_database(of_page, world.member)
    async with connected(f"/ws/tasks/{world.task.id}/", headers) as of_task:
        await of_task.frame()
        assert (await of_task.ask("task.session.status", {"session_id": named}))["error"]["code"] == code
        answer = await of_task.ask("task.session.status", {"session_id": str(world.session.id)})
        assert answer["result"]["session_id"] == str(world.session.id)


async def test_events_continue_beside_requests(world: World, socket: Socket) -> None:
    await say(world.session, 1)
    answer = await socket.ask("task.session.prompt", {"message_id": "m", "text": "Go"})
    assert answer["ok"]
    await say(world.session, 1)
    frame = await socket.frame()
    while frame["seq"] < 3:
        frame = await socket.frame()
    assert frame["seq"] == 3
