"""What a user may do with a prompt that got stuck: send it again, go on, dismiss it, take it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sessions_app.models import Prompt, TaskSession
from sessions_app.services import prompts
from sessions_app.services.errors import Conflict, NotFound, TerminalState
from tests.supervisor import tables
from tests.supervisor.journals import Journal, hear
from tests.supervisor.rows import change, make_user, names, prompt_states, running_session

pytestmark = pytest.mark.django_db


def with_prompt(state: str, **fields: Any) -> TaskSession:
    session = running_session(**fields)
    Prompt.objects.create(session=session, message_id="p1", text="do it", state=state)
    return session


@pytest.mark.parametrize("state", ["held", "interrupted"])
def test_sending_again_makes_a_new_prompt_and_settles_the_old_one(state: str) -> None:
    session = with_prompt(state)
    row = prompts.resend_prompt(session.id, "p1", make_user())
    assert (row.text, row.state, row.kind, row.by) == ("do it", "queued", "user", make_user())
    assert prompt_states(session) == {"p1": "dismissed", row.message_id: "queued"}
    assert session.prompts.get(message_id="p1").resent_as == row
    assert names(session) == ["session.prompt.dismissed", "session.prompt.queued"]


def test_sending_again_twice_makes_one() -> None:
    session = with_prompt("held")
    first = prompts.resend_prompt(session.id, "p1", make_user())
    assert prompts.resend_prompt(session.id, "p1", make_user()) == first
    assert session.prompts.count() == 2


def test_sending_again_orders_a_start_where_nothing_runs() -> None:
    session = with_prompt("held", launch_id="")
    prompts.resend_prompt(session.id, "p1", make_user())
    assert session.intents.filter(kind="start", done_at=None).count() == 1


@pytest.mark.parametrize("state", ["held", "interrupted"])
def test_a_prompt_can_be_dismissed_and_stays_so(state: str) -> None:
    session = with_prompt(state)
    for _ in range(2):
        assert prompts.dismiss_prompt(session.id, "p1").state == "dismissed"
    assert names(session) == ["session.prompt.dismissed"]


def test_a_queued_prompt_can_be_taken_back() -> None:
    session = with_prompt("queued")
    assert prompts.withdraw_prompt(session.id, "p1").state == "withdrawn"
    assert prompts.count_queued(session) == 0


Act = Callable[[Any, str], object]


def resend(session_id: Any, message_id: str) -> object:
    return prompts.resend_prompt(session_id, message_id, make_user())


def go_on(session_id: Any, message_id: str) -> object:
    return prompts.continue_interrupted(session_id, message_id, make_user())


@pytest.mark.parametrize(
    ("act", "states"),
    [
        (resend, ("queued", "sending", "accepted", "delivered", "done", "dismissed", "withdrawn")),
        (prompts.dismiss_prompt, ("queued", "sending", "accepted", "delivered", "done", "withdrawn")),
        (prompts.withdraw_prompt, ("sending", "accepted", "delivered", "done", "held", "interrupted", "dismissed")),
        (go_on, ("queued", "sending", "accepted", "delivered", "done", "held", "dismissed", "withdrawn")),
    ],
)
def test_what_does_not_fit_the_state_of_a_prompt_is_refused(act: Act, states: tuple[str, ...]) -> None:
    session = with_prompt("queued")
    for state in states:
        session.prompts.update(state=state)
        before = tables.dump()
        with pytest.raises(Conflict):
            act(session.id, "p1")
        assert tables.dump() == before, state


@pytest.mark.parametrize("act", [resend, prompts.dismiss_prompt, prompts.withdraw_prompt, go_on])
def test_a_prompt_that_is_not_there_is_not_found(act: Act) -> None:
    session = with_prompt("held")
    with pytest.raises(NotFound):
        act(session.id, "p2")
    with pytest.raises(NotFound):
        act(running_session().id, "p1")


@pytest.mark.parametrize("act", [resend, go_on])
def test_a_session_that_has_ended_takes_up_nothing_again(act: Act) -> None:
    session = change(with_prompt("interrupted"), state="COMPLETED", launch_id="")
    before = tables.dump()
    with pytest.raises(TerminalState):
        act(session.id, "p1")
    assert tables.dump() == before


def interrupted() -> TaskSession:
    session, journal = running_session(policy="manual"), Journal()
    Prompt.objects.create(session=session, message_id="p1", text="write it", state="sending")
    hear(session, [*journal.turn_begins("p1"), journal.tool("t1", title="make test"), journal.exits("p1")])
    return session


def test_going_on_is_one_prompt_in_the_systems_words_named_after_its_run() -> None:
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
