"""Wrong passwords are throttled; a new password ends other logins; a staff link sets a password."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from sessions_app.accounts.models import LoginLink
from sessions_app.accounts.rate_limits import MAX_PER_ADDRESS, MAX_PER_NAME
from sessions_app.accounts.views.profile import MAX_PASSWORD_ATTEMPTS
from tests.accounts.conftest import browser_of
from tests.pages.world import World

PASSWORD = "/settings/password/"
NEW = "analytical engine 1843"
CHANGE = {"old_password": "lovelace", "new_password1": NEW, "new_password2": NEW}


RIGHT = "lovelace"


def log_in(name: str = "ada", password: str = RIGHT, address: str = "203.0.113.1", **more: Any) -> int:
    return Client(REMOTE_ADDR=address, **more).post("/login/", {"username": name, "password": password}).status_code


@pytest.fixture
def ada_with_password(world: World) -> Client:
    """Return the browser session of Ada, logged in with her password."""
    client = Client()
    assert client.post("/login/", {"username": "ada", "password": "lovelace"}).status_code == 302
    return client


class TestWrongPasswords:
    @pytest.mark.parametrize("name", ["ada", "nobody-of-this-name", "ADA", "\u00e5da"])
    def test_guesses_for_one_name_are_throttled_even_if_it_is_unknown(self, name: str, world: World) -> None:
        messages = [log_in(name, "wrong", f"203.0.113.{number}") for number in range(MAX_PER_NAME + 1)]
        assert messages == [200] * MAX_PER_NAME + [429]

    def test_guesses_from_one_address_are_throttled_for_every_name(self, world: World) -> None:
        messages = [log_in(f"name{number}", "wrong") for number in range(MAX_PER_ADDRESS)]
        assert (set(messages), log_in()) == ({200}, 429)
        assert log_in(address="203.0.113.2") == 302

    def test_guesses_are_counted_by_peer_address(self, world: World) -> None:
        for number in range(MAX_PER_ADDRESS):
            log_in(f"n{number}", "wrong", HTTP_X_FORWARDED_FOR=f"198.51.100.{number}")
        assert log_in(HTTP_X_FORWARDED_FOR="198.51.100.99") == 429

    def test_correct_passwords_are_not_counted(self, world: World) -> None:
        assert {log_in() for _ in range(MAX_PER_ADDRESS + 2)} == {302}

    def test_wrong_passwords_do_not_block_a_login_link(self, world: World) -> None:
        for _ in range(MAX_PER_NAME + 1):
            log_in(password="wrong")
        assert Client().post(f"/login/{LoginLink.mint(world.ada)}/").status_code == 302


def test_new_password_ends_every_other_login_and_link(ada_with_password: Client, world: World) -> None:
    elsewhere, link = browser_of(world.ada), LoginLink.mint(world.ada)
    assert "1 other browser" in ada_with_password.get(PASSWORD).text
    assert ada_with_password.post(PASSWORD, CHANGE).status_code == 302
    assert ada_with_password.get(PASSWORD).status_code == 200
    assert elsewhere.get("/").status_code == 302
    assert Client().post(f"/login/{link}/").status_code == 410
    assert (log_in(), log_in(password=NEW)) == (200, 302)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"old_password": "byron"}, "incorrectly"),
        ({"new_password2": "another"}, "match"),
        ({"new_password1": "12345", "new_password2": "12345"}, "too short"),
        ({"new_password1": "password1", "new_password2": "password1"}, "too common"),
    ],
)
def test_password_change_is_refused(wrong: dict[str, str], why: str, ada: Client) -> None:
    response = ada.post(PASSWORD, {**CHANGE, **wrong})
    assert response.status_code == 422
    assert why in response.text
    assert log_in() == 302


def test_wrong_old_passwords_are_throttled(ada: Client) -> None:
    statuses = [
        ada.post(PASSWORD, {**CHANGE, "old_password": "byron"}).status_code for _ in range(MAX_PASSWORD_ATTEMPTS + 1)
    ]
    assert statuses == [422] * MAX_PASSWORD_ATTEMPTS + [429]
    assert ada.post(PASSWORD, CHANGE).status_code == 429
    assert log_in() == 302


def test_other_logins_can_be_ended_separately(ada: Client, bob: Client, world: World) -> None:
    elsewhere = browser_of(world.ada)
    assert ada.post(f"{PASSWORD}logins/").status_code == 302
    assert [client.get("/").status_code for client in (ada, elsewhere, bob)] == [200, 302, 200]
    assert "Only here" in ada.get(PASSWORD).text


def link_of(text: str) -> str:
    found = re.search(r"/login/[\w-]{43}/", text)
    assert found is not None
    return found[0]


class TestStaffLink:
    def given(self, staff: Client, user: User, purpose: str = "password") -> str:
        response = staff.post(f"/settings/people/{user.pk}/link/", {"purpose": purpose})
        assert response.status_code == 201
        assert "no-store" in response.headers["Cache-Control"]
        return link_of(response.text)

    def test_link_sets_a_password_once_without_the_old_one(self, staff: Client, world: World) -> None:
        link, client = self.given(staff, world.ada), Client()
        assert "Set a password for ada?" in client.get(link).text
        assert client.post(link).headers["Location"] == PASSWORD
        assert "old_password" not in client.get(PASSWORD).text
        assert client.post(PASSWORD, {"new_password1": NEW, "new_password2": NEW}).status_code == 302
        assert "old_password" in client.get(PASSWORD).text
        assert log_in(password=NEW) == 302

    def test_login_link_does_not_set_a_password(self, staff: Client, world: World) -> None:
        client = Client()
        assert client.post(self.given(staff, world.ada, "login")).headers["Location"] == "/"
        assert "old_password" in client.get(PASSWORD).text

    def test_link_replaces_earlier_links(self, staff: Client, world: World) -> None:
        first, second = self.given(staff, world.ada), self.given(staff, world.ada)
        assert [Client().post(link).status_code for link in (first, second)] == [410, 302]

    def test_link_records_its_creator(self, staff: Client, world: World) -> None:
        self.given(staff, world.ada)
        assert LoginLink.objects.get().made_by == User.objects.get(username="operator")

    @pytest.mark.parametrize("more", [{"is_staff": True}, {"is_superuser": True}], ids=str)
    def test_link_cannot_be_created_for_other_staff(self, more: Any, staff: Client, world: World) -> None:
        User.objects.filter(pk=world.ada.pk).update(**more)
        assert staff.post(f"/settings/people/{world.ada.pk}/link/").status_code == 403
        assert not LoginLink.objects.exists()


def test_user_without_a_password_sets_one_without_an_old_one(bob: Client, world: World) -> None:
    world.bob.set_unusable_password()
    world.bob.save()
    client = browser_of(world.bob)
    assert client.post(PASSWORD, {"new_password1": NEW, "new_password2": NEW}).status_code == 302
    assert log_in("bob", NEW) == 302


def test_session_cookies_are_http_only(ada_with_password: Client) -> None:
    for name in ("kandev_session", "kandev_csrf"):
        if name in ada_with_password.cookies:
            assert ada_with_password.cookies[name]["httponly"] is True
            assert ada_with_password.cookies[name]["samesite"] == "Lax"
    assert "kandev_session" in ada_with_password.cookies
