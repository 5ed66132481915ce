"""An agentctl that cannot write its journal is the session's error, for as long as that lasts and no longer."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.models import Lease, LeaseLost
from sessions_app.supervisor.ingest.trouble import tell_trouble
from tests.supervisor.rows import MINE, fresh, last_payload, names, running_session

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("trouble", ["disk_full", "disk_failing"])
@pytest.mark.parametrize("state", ["RUNNING", "WAITING_FOR_INPUT"])
def test_trouble_is_shown_and_taken_away(trouble: str, state: str) -> None:
    session = running_session(state=state)
    for _ in range(2):
        tell_trouble(session.id, MINE, trouble)
    assert (fresh(session).state, fresh(session).error_code) == (state, trouble)
    assert "disk" in fresh(session).error_message
    for _ in range(2):
        tell_trouble(session.id, MINE, "")
    assert (fresh(session).state, fresh(session).error_code, fresh(session).error_message) == (state, "", "")
    assert names(session) == ["session.state_changed"] * 2
    assert last_payload(session, "session.state_changed")["reason"] == "room_again"


@pytest.mark.parametrize(
    "fields",
    [{"state": "ERROR", "error_code": "unreachable"}, {"state": "WAITING_FOR_INPUT", "error_code": "token_rejected"}],
)
def test_the_end_of_a_trouble_takes_no_other_error_away(fields: dict[str, Any]) -> None:
    session = running_session(**fields)
    tell_trouble(session.id, MINE, "")
    assert fresh(session).error_code == fields["error_code"]
    assert names(session) == []


def test_who_does_not_hold_the_lease_says_nothing() -> None:
    session = running_session()
    with pytest.raises(LeaseLost):
        tell_trouble(session.id, Lease("somebody else", 1), "disk_full")
    assert fresh(session).error_code == ""
