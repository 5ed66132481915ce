"""What a person is asked to allow is shown in full beside the buttons; elsewhere, its beginning and its end."""

from __future__ import annotations

import pytest
from django.test import Client

from sessions_app.mcp_server import reading
from sessions_app.notifications.delivery import render_email
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT
from tests.attention.reading import as_read
from tests.pages.world import World, asks, ingest_lines, path_of

pytestmark = pytest.mark.any_database

DANGER = "rm -rf the-end"
LONG = f"echo {'a' * 25_000} ; {DANGER}"
BIG = "".join(f"line {number:05d} {'x' * 38}\n" for number in range(3000))


def card_of(client: Client, path: str) -> str:
    html = str(client.get(path).text)
    return html[html.index('id="permissions"') : html.index("</form>", html.index('id="permissions"'))]


def has_allow_button(card: str) -> bool:
    return 'value="allow"' in card


def test_whole_command_is_readable_before_the_buttons(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(raw_input={"command": LONG}))
    card = card_of(ada, path_of(session))
    assert DANGER in card[: card.index('class="buttons"')]
    assert DANGER in card[: card.index("<details")], "behind no toggle"
    assert has_allow_button(card)


@pytest.mark.parametrize("line", [10, 1500, 2999])
def test_change_anywhere_in_a_long_file_is_in_card_and_tool_card(line: int, ada: Client, world: World) -> None:
    session = world.running_session()
    changed = BIG.replace(f"line {line:05d} {'x' * 38}", "EVIL-CHANGE")
    diff = {"type": "diff", "path": "/w/big.txt", "oldText": BIG, "newText": changed}
    call = {"kind": "tool.call", "tool_call_id": "t1", "title": "Edit big.txt", "content": [diff]}
    ingest_lines(session, call, asks(content=[diff]))
    card = card_of(ada, path_of(session))
    assert "EVIL-CHANGE" in card
    assert card.count('class="gone"') == card.count('class="added"') == 1
    assert ada.get(path_of(session)).text.count("EVIL-CHANGE") == 2
    assert card.index("EVIL-CHANGE") < card.index('class="buttons"')
    assert has_allow_button(card)


def test_changed_line_end_is_not_an_unchanged_file(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(content=[{"type": "diff", "path": "run.sh", "oldText": "a\r\n", "newText": "a\n"}]))
    card = card_of(ada, path_of(session))
    assert "The file is unchanged." not in card
    assert "-a␍" in card


def test_request_that_cannot_be_shown_whole_offers_no_allow(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(raw_input={"command": "x" * (REVIEW_LIMIT + 1)}))
    card = card_of(ada, path_of(session))
    assert not has_allow_button(card)
    assert 'value="reject"' in card
    assert "too long to be shown in full" in card
    [offered] = reading.pending_permissions(session)
    assert [option.option_id for option in offered.options] == ["reject"]


def test_inbox_and_email_show_the_end_of_a_long_command(ada: Client, world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(raw_input={"command": LONG}, title=f"echo {'b' * 500} ; {DANGER}"))
    item = session.attention.get(kind="permission")
    for text in (as_read(item).why, render_email([item])["text"], ada.get("/attention/").text):
        assert text.count(DANGER) == 2
        assert "left out" in text
    assert "read the whole request" in item.next_step


def test_mcp_client_gets_the_whole_command_with_its_options(world: World) -> None:
    session = world.running_session()
    ingest_lines(session, asks(raw_input={"command": LONG}))
    [offered] = reading.pending_permissions(session)
    assert DANGER in offered.details
    assert [option.option_id for option in offered.options] == ["allow", "reject"]
