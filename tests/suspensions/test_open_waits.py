"""What the list of open waits says of a suspension."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import TaskSession
from sessions_app.sessions.services.intents import request_cancel
from sessions_app.suspensions.open_waits import WAIT_SOURCES
from tests.supervisor.journals import Journal
from tests.supervisor.rows import make_user, running_session
from tests.suspensions.test_outages import fail
from tests.suspensions.test_services import LIMIT, suspended_session

pytestmark = pytest.mark.django_db(transaction=True)


def wake_up() -> str:
    """Return what is said to happen at the end of the only open suspension."""
    return WAIT_SOURCES[0].describe(WAIT_SOURCES[0].rows().get()).wake_up


@pytest.mark.parametrize(
    ("windows", "text", "said"),
    [
        (0, LIMIT, "not continued automatically"),
        (1, LIMIT, "asked to continue its turn"),
        (1, f"{LIMIT}\nClaude Code will continue automatically at 3pm (UTC).", "goes on with its turn by itself"),
        (1, "You have reached the maximum number of requests for today.", "“Go on now” ends it"),
    ],
)
def test_wake_up_says_what_the_policy_does(settings: Any, windows: int, text: str, said: str) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = windows
    suspended_session(text, tool=True)
    assert said in wake_up()


def test_wake_up_after_a_cancel_continues_nothing(settings: Any) -> None:
    settings.KANDEV_CONTINUE_AT_RESET = 1
    session: TaskSession = suspended_session(tool=True)
    assert request_cancel(session.id, make_user())
    assert wake_up().endswith("Its turn is not continued.")


def test_wake_up_of_an_outage_sends_the_prompt_again(settings: Any) -> None:
    settings.KANDEV_TURN_RETRIES = 1
    fail(running_session(), Journal(), "p1")
    assert "prompt of the last turn is sent again" in wake_up()
