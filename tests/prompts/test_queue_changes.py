"""Queued prompts are edited and moved until they are sent, and nobody overwrites what they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app.kernel.services.errors import Conflict, Invalid, NotFound, PromptChanged, PromptNotQueued, QueueFull
from sessions_app.models import Prompt, TaskSession
from sessions_app.prompts import services as prompts
from sessions_app.prompts.models import QUEUE_ORDER
from tests.prompts.test_delivery import queue_prompts, send_prompts
from tests.supervisor.recording_agentctl import recording_agentctl
from tests.supervisor.rows import NO_LEASE, make_user, names, running_session

pytestmark = pytest.mark.django_db(transaction=True)

Change = Callable[[TaskSession, str], Any]


def edit(session: TaskSession, message_id: str) -> Prompt:
    return prompts.edit_prompt(session.id, message_id, "do something else", make_user(), version=1)


def move(session: TaskSession, message_id: str) -> Prompt:
    return prompts.move_to_position(session.id, message_id, 1, make_user())


def queue_of(session: TaskSession) -> list[str]:
    return [row.message_id for row in session.prompts.filter(state="queued").order_by(*QUEUE_ORDER)]


def payload_of_last(session: TaskSession) -> dict[str, Any]:
    event = session.events.order_by("seq").last()
    assert event is not None
    return dict(event.payload)


def test_edited_text_is_what_the_agent_gets() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    row = prompts.edit_prompt(session.id, "p1", "do it well", make_user(), version=1)
    assert (row.text, row.text_version, row.state) == ("do it well", 2, "queued")
    with recording_agentctl(session) as agentctl:
        assert send_prompts(session, agentctl) == ["p1"]
        assert agentctl.prompts[0]["text"] == "do it well"


def test_edit_names_its_editor_beside_who_queued_the_prompt() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    Prompt.objects.update(by=make_user())
    row = prompts.edit_prompt(session.id, "p1", "do it well", make_user("bob"), version=1)
    assert (row.by, row.edited_by) == (make_user(), "bob")
    assert payload_of_last(session)["by"] == "bob"


def test_edit_is_recorded_with_both_texts() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    prompts.edit_prompt(session.id, "p1", "x" * 5000, make_user(), version=1)
    assert names(session)[-1] == "session.prompt.edited"
    payload = payload_of_last(session)
    assert (payload["old_text"], payload["new_text"]) == ("do p1", "x" * 2000)
    assert (payload["version"], payload["old_length"], payload["length"]) == (2, len("do p1"), 5000)


def test_second_editor_does_not_overwrite_the_first() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    prompts.edit_prompt(session.id, "p1", "the first editor's", make_user(), version=1)
    with pytest.raises(PromptChanged) as refused:
        prompts.edit_prompt(session.id, "p1", "the second editor's", make_user(), version=1)
    assert refused.value.details == {"version": 2, "text": "the first editor's"}
    prompts.edit_prompt(session.id, "p1", "the second editor's", make_user(), version=2)
    assert Prompt.objects.get().text == "the second editor's"


def test_repeated_edit_changes_nothing_more() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    for _ in range(2):
        assert prompts.edit_prompt(session.id, "p1", "do it well", make_user(), version=1).text_version == 2
    assert names(session).count("session.prompt.edited") == 1


def test_repeated_request_still_names_the_edited_prompt() -> None:
    session = running_session()
    row, _ = prompts.queue_prompt(session.id, "p1", "do it", make_user())
    for number, text in enumerate(("do it well", "do it now"), start=1):
        prompts.edit_prompt(session.id, "p1", text, make_user(), version=number)
    assert prompts.queue_prompt(session.id, "p1", "do it", make_user()) == (row, False)
    with pytest.raises(Conflict):
        prompts.queue_prompt(session.id, "p1", "do it now", make_user())


@pytest.mark.parametrize("change", [edit, move])
@pytest.mark.parametrize("state", ["sending", "accepted", "delivered", "done", "held", "interrupted", "withdrawn"])
def test_prompt_that_left_the_queue_is_not_changed(change: Change, state: str) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1", state=state)
    with pytest.raises(PromptNotQueued) as refused:
        change(session, "p1")
    assert (refused.value.code, refused.value.details) == ("prompt_not_queued", {"state": state})
    assert Prompt.objects.get().text == "do p1"
    assert names(session) == []


def test_prompt_that_is_being_sent_is_not_changed() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with recording_agentctl(session) as agentctl:
        send_prompts(session, agentctl)
    with pytest.raises(PromptNotQueued):
        edit(session, "p1")


@pytest.mark.parametrize("change", [edit, move])
@pytest.mark.parametrize("kind", ["continue", "retry", "wait", "check"])
def test_prompts_of_kandev_are_neither_edited_nor_moved(change: Change, kind: str) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1", kind=kind)
    with pytest.raises(Conflict, match="Kandev wrote this prompt"):
        change(session, "p1")


@pytest.mark.parametrize("change", [edit, move])
def test_unknown_prompt_is_not_found(change: Change) -> None:
    with pytest.raises(NotFound):
        change(running_session(), "p1")


@pytest.mark.parametrize("text", ["", "  \n", "a\0b", "x" * (prompts.TEXT_LIMIT + 1)])
def test_text_that_cannot_be_sent_is_not_saved(text: str) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "p1")
    with pytest.raises(Invalid):
        prompts.edit_prompt(session.id, "p1", text, make_user(), version=1)


MOVES: Final[tuple[tuple[Callable[[TaskSession], Any], list[str]], ...]] = (
    (lambda session: prompts.move_to_position(session.id, "c", 1, make_user()), ["c", "a", "b", "d"]),
    (lambda session: prompts.move_to_position(session.id, "a", 3, make_user()), ["b", "c", "a", "d"]),
    (lambda session: prompts.move_to_position(session.id, "a", 99, make_user()), ["b", "c", "d", "a"]),
    (lambda session: prompts.move_by(session.id, "b", -1, make_user()), ["b", "a", "c", "d"]),
    (lambda session: prompts.move_by(session.id, "b", 1, make_user()), ["a", "c", "b", "d"]),
    (lambda session: prompts.move_by(session.id, "a", -1, make_user()), ["a", "b", "c", "d"]),
    (lambda session: prompts.move_by(session.id, "d", 1, make_user()), ["a", "b", "c", "d"]),
    (lambda session: prompts.move_next_to(session.id, "d", "b", make_user(), after=False), ["a", "d", "b", "c"]),
    (lambda session: prompts.move_next_to(session.id, "a", "c", make_user(), after=True), ["b", "c", "a", "d"]),
    (lambda session: prompts.move_next_to(session.id, "a", "a", make_user(), after=True), ["a", "b", "c", "d"]),
)


@pytest.mark.parametrize(("do", "expected"), MOVES)
def test_moved_prompts_are_in_the_new_order(do: Callable[[TaskSession], Any], expected: list[str]) -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", "b", "c", "d")
    do(session)
    assert queue_of(session) == expected
    assert names(session) == ([] if expected == ["a", "b", "c", "d"] else ["session.prompt.moved"])


def test_prompt_of_a_workflow_is_moved_but_neither_edited_nor_handed_to_another_turn() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a")
    of_workflow = {"message_id": "b", "text": "do b", "of_workflow": True}
    Prompt.objects.create(session=session, **of_workflow)
    with pytest.raises(Conflict, match="A step of a workflow"):
        prompts.edit_prompt(session.id, "b", "do it otherwise", make_user(), version=1)
    with pytest.raises(Conflict, match="A step of a workflow"):
        prompts.send_now(session.id, "b")
    assert Prompt.objects.get(message_id="b").text == "do b"
    prompts.move_by(session.id, "b", -1, make_user())
    assert queue_of(session) == ["b", "a"]


def test_prompt_of_a_workflow_that_is_sent_again_still_belongs_to_it() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", state="held")
    Prompt.objects.update(of_workflow=True)
    again = prompts.resend_prompt(session.id, "a", make_user())
    assert again.of_workflow


def test_move_is_recorded_with_who_moved_it() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", "b")
    prompts.move_by(session.id, "b", -1, make_user("bob"))
    payload = payload_of_last(session)
    assert (payload["message_id"], payload["old_position"], payload["new_position"], payload["by"]) == (
        "b",
        2,
        1,
        "bob",
    )


def test_prompts_are_sent_in_the_order_that_users_gave_them() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", "b")
    prompts.move_by(session.id, "b", -1, make_user())
    with recording_agentctl(session) as agentctl:
        assert send_prompts(session, agentctl) == ["b"]


def test_move_needs_as_many_statements_in_a_longer_queue() -> None:
    session, counts = running_session(execution=NO_LEASE), list[int]()
    for number in range(2):
        queue_prompts(session, *(f"{number}-{each}" for each in range(10)))
        with CaptureQueriesContext(connection) as queries:
            prompts.move_to_position(session.id, f"{number}-9", 1, make_user())
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert queue_of(session)[:3] == ["1-9", "0-9", "0-0"]


def test_full_queue_takes_no_more_until_one_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_QUEUED", 2)
    session = queue_prompts(running_session(), "a", state="delivered")
    queue_prompts(session, "b", "c")
    with pytest.raises(QueueFull) as refused:
        prompts.queue_prompt(session.id, "d", "do d", make_user())
    assert (refused.value.code, refused.value.details) == ("queue_full", {"limit": 2})
    assert prompts.queue_prompt(session.id, "c", "do c", make_user())[1] is False
    prompts.withdraw_prompt(session.id, "b")
    assert prompts.queue_prompt(session.id, "d", "do d", make_user())[1] is True


def test_later_prompt_is_behind_those_that_were_moved() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", "b")
    prompts.move_to_position(session.id, "a", 2, make_user())
    queue_prompts(session, "c")
    assert queue_of(session) == ["b", "a", "c"]


def test_move_names_both_positions() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", "b", "c")
    prompts.move_to_position(session.id, "c", 1, make_user())
    payload = payload_of_last(session)
    assert (payload["message_id"], payload["old_position"], payload["new_position"]) == ("c", 3, 1)


def test_prompt_is_not_moved_next_to_one_that_was_sent() -> None:
    session = queue_prompts(running_session(execution=NO_LEASE), "a", state="delivered")
    queue_prompts(session, "b", "c")
    with pytest.raises(PromptNotQueued):
        prompts.move_next_to(session.id, "c", "a", make_user(), after=False)
    assert queue_of(session) == ["b", "c"]
