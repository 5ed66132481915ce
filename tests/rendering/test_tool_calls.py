"""Images and other content of tools on the page, and large content in the log."""

from __future__ import annotations

import base64
import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from sessions_app.events import rebuild_rows
from sessions_app.kernel.rules.log_event import LogEvent
from sessions_app.kernel.rules.rebuild import SessionRebuild
from sessions_app.rendering.operations.tool_calls import IMAGE_LIMIT
from tests.pages.world import World, asks, ingest_lines, path_of

pytestmark = pytest.mark.any_database

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


def image(data: str = PNG, media_type: str = "image/png") -> dict[str, object]:
    return {"type": "content", "content": {"type": "image", "mimeType": media_type, "data": data}}


def tool_line(*content: object) -> dict[str, object]:
    return {"kind": "tool.call", "tool_call_id": "t1", "title": "Screenshot", "content": list(content)}


def test_image_of_a_tool_is_shown_in_its_card_and_in_a_permission(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, tool_line(image()), asks(content=[image()]))
    html = ada.get(path_of(session)).text
    addresses = re.findall(r'<img src="(/tasks[^"]+)"', html)
    assert ["/messages/" in address for address in addresses] == [True, False]
    for address in addresses:
        answer = ada.get(address)
        assert (answer.status_code, answer.content) == (200, base64.b64decode(PNG))
        assert answer["Content-Type"] == "image/png"
        assert answer["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert ada.get(f"{address[:-9]}00000000/").status_code == 404, "an address names its content"
    assert "No details available" not in html


def test_image_of_a_request_with_any_id_is_shown(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks("p/1", content=[image()]))
    (address,) = re.findall(r'<img src="(/tasks[^"]+)"', ada.get(path_of(session)).text)
    assert ada.get(address).status_code == 200
    assert ada.get(address.replace("p/1", "%00")).status_code == 404  # a database may refuse to look for it


def test_image_of_another_team_is_not_found(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, tool_line(image()), asks(content=[image()]))
    addresses = re.findall(r'<img src="(/tasks[^"]+)"', ada.get(path_of(session)).text)
    stranger = Client()
    stranger.force_login(User.objects.create_user("stranger"))
    assert len(addresses) == 2
    assert [stranger.get(address).status_code for address in addresses] == [404, 404]


@pytest.mark.parametrize(
    "part",
    [
        image("<script>"),
        image(media_type="image/svg+xml"),
        image(base64.b64encode(b"<svg xmlns=").decode()),
        image(media_type="image/jpeg"),
        image(PNG + "A" * (IMAGE_LIMIT * 4 // 3)),
    ],
    ids=["no base64", "SVG", "SVG that calls itself PNG", "PNG that calls itself JPEG", "too large"],
)
def test_other_image_is_named_and_not_shown(part: dict[str, object], ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, tool_line(part))
    html = ada.get(path_of(session)).text
    assert "<img src=" not in html[html.index('id="messages"') :]
    assert "[image image/" in html


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "terminal", "terminalId": "term-1"}, "[terminal term-1]"),
        ({"type": "content", "content": {"type": "audio", "mimeType": "audio/wav", "data": "AA"}}, "[audio audio/wav]"),
        ({"type": "content", "content": {"type": "resource_link", "uri": "file:///a", "name": "a"}}, "file:///a"),
        ({"type": "content", "content": {"type": "resource", "resource": {"uri": "x", "text": "inside"}}}, "inside"),
    ],
    ids=["terminal", "audio", "link", "embedded text"],
)
def test_other_content_of_a_tool_is_named(part: dict[str, object], text: str, ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, tool_line(part))
    assert text in ada.get(path_of(session)).text


def test_update_of_a_large_tool_call_does_not_repeat_its_content(world: World) -> None:
    session = world.running_session()
    large = "x" * 1_000_000
    ingest_lines(session, tool_line(), {"kind": "tool.update", "tool_call_id": "t1", "raw_output": large})
    for number in range(3):
        ingest_lines(session, {"kind": "tool.update", "tool_call_id": "t1", "title": f"Read {number}"})
    tool = session.messages.get(role="tool")
    assert (tool.payload["title"], tool.payload["raw_output"]) == ("Read 2", large)
    events = session.events.filter(name="session.message.updated", payload__message_id=str(tool.id)).order_by("seq")
    changes = [event.payload.get("payload_changes") for event in events]
    assert changes[-3:] == [{"title": f"Read {number}"} for number in range(3)]
    assert sum(large in str(event.payload) for event in events) == 1


def test_rebuilt_message_has_the_changes_of_its_payload(world: World) -> None:
    session = world.running_session()
    ingest_lines(session, tool_line(), {"kind": "tool.update", "tool_call_id": "t1", "raw_output": "x" * 100_000})
    ingest_lines(session, {"kind": "tool.update", "tool_call_id": "t1", "title": "Read it"})
    rebuild = SessionRebuild(session.id)
    for event in session.events.order_by("seq"):
        rebuild_rows(rebuild, LogEvent(event.seq, event.at, event.name, event.payload, event.once))
    tool = session.messages.get(role="tool")
    assert rebuild.messages[tool.id].payload == tool.payload
