"""Socket actions and close codes are documented."""

from __future__ import annotations

from sessions_app.live.authentication import CloseCode
from sessions_app.socket_actions import ACTIONS
from tests.docs.documents import rows, text_of


def test_every_socket_action_is_documented() -> None:
    assert [action for action in ACTIONS if f"`{action}`" not in text_of("events.md")] == []


def test_exactly_the_close_codes_are_documented() -> None:
    documented = {word for word in rows("events.md", "How to follow it") if word.isdigit()}
    assert documented == {str(code.value) for code in CloseCode}
