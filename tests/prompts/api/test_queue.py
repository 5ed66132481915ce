"""Queued prompts are edited and moved over the API."""

from __future__ import annotations

from typing import Any, Final

import pytest
from rest_framework.test import APIClient

from sessions_app.models import Prompt
from tests.api.world import World, prompt


def change(world: World, api: APIClient, message_id: str, **values: Any) -> Any:
    return api.patch(world.url(f"prompts/{message_id}/"), values, format="json")


def queue(world: World, api: APIClient) -> list[str]:
    rows = api.get(world.url("prompts/"), {"state": "queued"}).json()["results"]
    return [row["message_id"] for row in sorted(rows, key=lambda row: int(row["place"]))]


def test_text_is_edited_over_the_version_that_was_seen(world: World, api: APIClient) -> None:
    prompt(world.session, "queued", "caller/1")
    answer = change(world, api, "caller/1", text="Paint it red", version=1)
    assert (answer.status_code, answer.json()["text"], answer.json()["version"]) == (200, "Paint it red", 2)
    late = change(world, api, "caller/1", text="Paint it blue", version=1)
    assert (late.status_code, late.json()["code"]) == (409, "prompt_changed")
    assert late.json()["details"] == {"version": 2, "text": "Paint it red"}


def test_prompt_that_was_just_sent_is_refused_with_its_state(world: World, api: APIClient) -> None:
    prompt(world.session, "sending", "one")
    answer = change(world, api, "one", text="Paint it red", version=1)
    assert (answer.status_code, answer.json()["code"]) == (409, "prompt_not_queued")
    assert answer.json()["details"] == {"state": "sending"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [({"position": 1}, "cab"), ({"before": "b"}, "acb"), ({"after": "a"}, "acb"), ({"position": 9}, "abc")],
)
def test_prompt_is_moved(world: World, api: APIClient, values: dict[str, Any], expected: str) -> None:
    for message_id in "abc":
        prompt(world.session, "queued", message_id)
    assert change(world, api, "c", **values).status_code == 200
    assert queue(world, api) == list(expected)


WRONG: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"text": "Paint it red"},
    {"version": 1},
    {"position": 0},
    {"position": 1, "version": 1},
    {"position": 1, "before": "b"},
    {"text": " ", "version": 1},
    {"text": "Paint it red", "version": 1, "state": "done"},
)


@pytest.mark.parametrize("values", WRONG)
def test_anything_but_one_change_is_refused(world: World, api: APIClient, values: dict[str, Any]) -> None:
    prompt(world.session, "queued", "one")
    answer = change(world, api, "one", **values)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert Prompt.objects.get().text == "Paint it green"
