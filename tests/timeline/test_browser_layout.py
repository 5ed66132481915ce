"""Nothing moves while the timeline loads: its rows and days have their places before the scripts have run."""

from __future__ import annotations

from typing import Any, Final

import pytest
from playwright.sync_api import expect

from tests.pages.browsers import NO_SOCKET
from tests.pages.layout import observe_shifts, shifts_of
from tests.pages.world import World, ingest_lines, path_of

pytestmark = pytest.mark.browser

SCREENS: Final = ({"width": 1280, "height": 800}, {"width": 390, "height": 844})


@pytest.mark.parametrize("viewport", SCREENS, ids=["desktop", "phone"])
def test_timeline_does_not_move_while_it_loads(viewport: dict[str, int], visit: Any, world: World) -> None:
    session = world.running_session()
    for number in range(12):
        prompt = session.prompts.create(message_id=f"p{number}", text=f"Prompt {number} " * 8)
        ingest_lines(session, {"kind": "prompt.accepted", "message_id": prompt.message_id})
        ingest_lines(session, {"kind": "turn.completed", "message_id": prompt.message_id, "stop_reason": "end_turn"})
    ada = visit(viewport=viewport, timezone_id="Pacific/Auckland")
    observe_shifts(ada.page)
    with ada.page.expect_response("**/timeline/live/"):  # the first update replaces the rows by the same ones
        page = ada.open(f"{path_of(session)}timeline/")
    expect(page.locator("time:not([data-local])")).to_have_count(0)
    assert shifts_of(page) == []
    assert ada.unexpected(*NO_SOCKET) == []
