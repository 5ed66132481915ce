"""What a browser shows as notifications: chosen kinds of the user's own unseen items, a sentence and a link."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from sessions_app.attention.services.inbox import MAX_NOTICES, acknowledge_session
from sessions_app.notifications.models import NotificationSettings
from tests.pages.fixtures import ada, bob, world  # noqa: F401
from tests.pages.world import World, asks, ingest_lines, path_of


def told(client: Client) -> list[dict[str, Any]]:
    """Return what the browser of ``client`` is told."""
    notices: list[dict[str, Any]] = client.get("/attention/count/").json()["notices"]
    return notices


def choose(client: Client, *kinds: str) -> None:
    answer = client.post("/settings/notifications/browser/", {"browser_kinds": kinds})
    assert answer.status_code == 302


def test_only_chosen_kinds_are_told_until_they_are_seen(ada: Client, bob: Client, world: World) -> None:  # noqa: F811
    session = world.running_session()
    ingest_lines(session, asks())
    assert told(ada) == [], "nobody is told without having chosen it"
    choose(ada, "question")
    assert told(ada) == []
    choose(ada, "permission", "question")
    choose(bob, "permission")
    (notice,) = told(ada)
    assert set(notice) == {"id", "tag", "what", "title", "url"}, "a sentence and a link, nothing else"
    place = f"{path_of(session)}requests/?request=p1&next=%2Fattention%2F"
    assert (notice["title"], notice["url"]) == ("Fix the tests", place)
    assert "Run the tests" not in json.dumps(notice)
    assert told(bob) == [], "another team"
    acknowledge_session(session, world.ada)
    assert told(ada) == []
    choose(ada)
    assert NotificationSettings.objects.get(user=world.ada).browser_kinds == ""


def test_notices_are_bounded_and_choices_are_checked(ada: Client, world: World) -> None:  # noqa: F811
    for number in range(MAX_NOTICES + 1):
        ingest_lines(world.running_session(), asks(f"p{number}"))
    choose(ada, "permission")
    assert len(told(ada)) == MAX_NOTICES
    assert ada.post("/settings/notifications/browser/", {"browser_kinds": ["nonsense"]}).status_code == 422


@pytest.mark.parametrize("name", ["favicon.svg"])
def test_manifest_names_files_that_exist(name: str) -> None:
    folder = Path(settings.BASE_DIR) / "frontend/static/kandev"
    manifest = json.loads((folder / "app.webmanifest").read_text())
    assert [icon["src"] for icon in manifest["icons"]] == [name]
    assert (folder / name).is_file()
    assert {manifest["start_url"], manifest["scope"]} == {"/"}
