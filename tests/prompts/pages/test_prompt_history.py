"""A user's own earlier prompts of a session, which the composer offers."""

from __future__ import annotations

import pytest
from django.test import Client

from sessions_app.models import TaskSession
from sessions_app.prompts import services as prompts
from tests.pages.world import World, path_of

pytestmark = pytest.mark.any_database


def history(browser: Client, session: TaskSession) -> list[str]:
    found: list[str] = browser.get(f"{path_of(session)}prompt-history/").json()["prompts"]
    return found


def test_own_prompts_are_listed_once_with_the_newest_first(world: World, ada: Client) -> None:
    session = world.running_session()
    first = history(ada, session)
    for number, text in enumerate(("one", "two", "one")):
        prompts.queue_prompt(session.id, f"m{number}", text, world.ada)
    session.prompts.create(message_id="theirs", text="three", by=world.bob)
    prompts.queue_prompt(session.id, "of-a-step", "a step", world.ada, of_workflow=True)
    session.prompts.create(message_id="continue:1", text="go on", kind="continue")
    assert history(ada, session) == ["one", "two", *first]


def test_history_is_bounded(world: World, ada: Client) -> None:
    session = world.running_session()
    for number in range(prompts.HISTORY_LENGTH + 5):
        session.prompts.create(message_id=f"m{number}", text=f"do {number}", by=world.ada)
    session.prompts.create(message_id="long", text="x" * (prompts.HISTORY_TEXT + 1), by=world.ada)
    found = history(ada, session)
    assert (len(found), found[0]) == (prompts.HISTORY_LENGTH, f"do {prompts.HISTORY_LENGTH + 4}")
