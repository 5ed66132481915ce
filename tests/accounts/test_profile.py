"""Name, address, time zone and theme are stored for the user and applied without a script."""

from __future__ import annotations

import pytest
from django.test import Client

from sessions_app.accounts.models import Preferences
from tests.pages.world import World

PROFILE = "/settings/profile/"
WISH = {"name": "Ada Lovelace", "email": "ada@example.org", "time_zone": "Europe/London", "theme": "dark"}


def test_profile_is_saved_and_shown(ada: Client, world: World) -> None:
    assert ada.post(PROFILE, WISH).status_code == 302
    world.ada.refresh_from_db()
    assert (world.ada.get_full_name(), world.ada.email) == ("Ada Lovelace", "ada@example.org")
    text = ada.get("/").text
    assert 'data-theme="dark"' in text
    assert 'data-zone="Europe/London"' in text
    ada.post(PROFILE, {**WISH, "time_zone": "browser"})
    assert "data-zone" not in ada.get("/").text


@pytest.mark.parametrize(
    "wrong", [{"email": "ada"}, {"time_zone": "Mars/Olympus"}, {"theme": "pink"}, {"name": "x" * 151}]
)
def test_invalid_profile_is_not_saved(wrong: dict[str, str], ada: Client, world: World) -> None:
    assert ada.post(PROFILE, {**WISH, **wrong}).status_code == 422
    world.ada.refresh_from_db()
    assert (world.ada.first_name, world.ada.email) == ("", "")
    assert not Preferences.objects.exists()


def test_theme_follows_the_user_and_stays_after_logout(ada: Client, world: World) -> None:
    ada.post(PROFILE, WISH)
    other = Client()
    assert 'data-theme="system"' in other.get("/login/").text
    other.post("/login/", {"username": "ada", "password": "lovelace"})
    assert 'data-theme="dark"' in other.get("/").text
    other.post("/logout/")
    assert 'data-theme="dark"' in other.get("/login/").text


def test_theme_switch_works_for_everyone_and_redirects_only_locally(ada: Client, world: World) -> None:
    for client, kept in ((Client(), 0), (ada, 1)):
        response = client.post("/settings/theme/", {"theme": "dark", "next": "/executors/"})
        assert response.headers["Location"] == "/executors/"
        assert client.cookies["kandev_theme"].value == "dark"
        assert client.cookies["kandev_theme"]["httponly"] is True
        assert Preferences.objects.count() == kept
    away = ada.post("/settings/theme/", {"theme": "light", "next": "https://elsewhere.example/"})
    assert away.headers["Location"] == "/"
    assert ada.post("/settings/theme/", {"theme": "light", "quiet": "1"}).status_code == 204


@pytest.mark.parametrize(("name", "value"), [("kandev_theme", '"><script>'), ("kandev_zone", "Mars/Olympus")])
def test_invalid_preference_cookie_is_ignored(name: str, value: str, ada: Client) -> None:
    ada.cookies[name] = value
    text = ada.get("/").text
    assert 'data-theme="system"' in text
    assert "data-zone" not in text
    assert "Olympus" not in text
