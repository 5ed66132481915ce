"""What users can do with a stuck prompt: resend, continue, dismiss or withdraw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.kernel.services.errors import Conflict, NotFound, TerminalState
from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts import services as prompts
from tests.supervisor import database_dump
from tests.supervisor.journals import Journal, ingest
from tests.supervisor.rows import change, make_user, names, prompt_states, running_session

pytestmark = pytest.mark.django_db


def with_prompt(state: str, **fields: Any) -> TaskSession:
    session = running_session(**fields)
    Prompt.objects.create(session=session, message_id="p1", text="do it", state=state)
    return session


@pytest.mark.parametrize("state", ["held", "interrupted"])
def test_resending_creates_a_new_prompt_and_dismisses_the_old_one(state: str) -> None:
    session = with_prompt(state)
    row = prompts.resend_prompt(session.id, "p1", make_user())
    assert (row.text, row.state, row.kind, row.by) == ("do it", "queued", "user", make_user())
    assert prompt_states(session) == {"p1": "dismissed", row.message_id: "queued"}
    assert session.prompts.get(message_id="p1").resent_as == row
    assert names(session) == ["session.prompt.dismissed", "session.prompt.queued"]


def test_resending_twice_creates_one_prompt() -> None:
    session = with_prompt("held")
    first = prompts.resend_prompt(session.id, "p1", make_user())
    assert prompts.resend_prompt(session.id, "p1", make_user()) == first
    assert session.prompts.count() == 2


def test_resending_orders_a_start_when_no_agent_runs() -> None:
    session = with_prompt("held", launch_id="")
    prompts.resend_prompt(session.id, "p1", make_user())
    assert session.intents.filter(kind="start", done_at=None).count() == 1


@pytest.mark.parametrize("state", ["held", "interrupted"])
def test_dismissed_prompt_stays_dismissed(state: str) -> None:
    session = with_prompt(state)
    for _ in range(2):
        assert prompts.dismiss_prompt(session.id, "p1").state == "dismissed"
    assert names(session) == ["session.prompt.dismissed"]


def test_queued_prompt_can_be_withdrawn() -> None:
    session = with_prompt("queued")
    assert prompts.withdraw_prompt(session.id, "p1").state == "withdrawn"
    assert not session.prompts.filter(state="queued").exists()


Act = Callable[[Any, str], object]


def resend(session_id: Any, message_id: str) -> object:
    return prompts.resend_prompt(session_id, message_id, make_user())


def continue_turn(session_id: Any, message_id: str) -> object:
    return prompts.continue_interrupted(session_id, message_id, make_user())


@pytest.mark.parametrize(
    ("act", "states"),
    [
        (resend, ("queued", "sending", "accepted", "delivered", "done", "dismissed", "withdrawn")),
        (prompts.dismiss_prompt, ("queued", "sending", "accepted", "delivered", "done", "withdrawn")),
        (prompts.withdraw_prompt, ("sending", "accepted", "delivered", "done", "held", "interrupted", "dismissed")),
        (continue_turn, ("queued", "sending", "accepted", "delivered", "done", "held", "dismissed", "withdrawn")),
    ],
)
def test_action_that_does_not_fit_the_prompt_state_is_a_conflict(act: Act, states: tuple[str, ...]) -> None:
    session = with_prompt("queued")
    for state in states:
        session.prompts.update(state=state)
        before = database_dump.dump()
        with pytest.raises(Conflict):
            act(session.id, "p1")
        assert database_dump.dump() == before, state


@pytest.mark.parametrize("act", [resend, prompts.dismiss_prompt, prompts.withdraw_prompt, continue_turn])
def test_unknown_prompt_is_not_found(act: Act) -> None:
    session = with_prompt("held")
    with pytest.raises(NotFound):
        act(session.id, "p2")
    with pytest.raises(NotFound):
        act(running_session().id, "p1")


@pytest.mark.parametrize("act", [resend, continue_turn])
def test_ended_session_takes_no_prompt_again(act: Act) -> None:
    session = change(with_prompt("interrupted"), state="COMPLETED", launch_id="")
    before = database_dump.dump()
    with pytest.raises(TerminalState):
        act(session.id, "p1")
    assert database_dump.dump() == before


def interrupted() -> TaskSession:
    session, journal = running_session(policy="manual"), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    ingest(session, [*journal.turn_begins("p1"), journal.tool("t1", title="make test"), journal.exits("p1")])
    return session


def test_continuing_creates_one_continue_prompt_with_the_run_id() -> None:
    session = interrupted()
    assert prompt_states(session) == {"p1": "interrupted"}
    session = change(session, launch_id="again")
    row = prompts.continue_interrupted(session.id, "p1", make_user())
    assert (row.message_id, row.kind, row.state) == (f"continue:{session.runs.get().id}", "continue", "queued")
    assert "> write it" in row.text
    assert "- make test" in row.text
    assert prompts.continue_interrupted(session.id, "p1", make_user()) == row
    assert session.prompts.count() == 2
    assert prompt_states(session)["p1"] == "dismissed"
