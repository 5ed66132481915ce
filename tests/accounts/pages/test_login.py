"""Login by one-time link or password; the log never contains the secret."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from kandev.log_format import LoginSecretFilter
from sessions_app.accounts.models import LoginLink
from tests.pages.world import World

pytestmark = pytest.mark.any_database


@pytest.fixture(autouse=True)
def _forget_failures() -> None:
    cache.clear()


@pytest.fixture
def link(world: World) -> str:
    return f"/login/{LoginLink.mint(world.ada)}/"


def is_logged_in(client: Client) -> bool:
    return client.get("/").status_code == 200


def test_login_link_logs_in_only_after_confirmation(link: str) -> None:
    client = Client()
    response = client.get(link)
    assert "Log in as ada?" in response.text
    assert not is_logged_in(client)

    answer = client.post(link)

    assert answer.headers["Location"] == "/"
    assert is_logged_in(client)


def test_viewing_a_login_link_does_not_use_it_up(link: str) -> None:
    for _ in range(3):
        Client().get(link)
        Client().head(link)
    assert Client().post(link).status_code == 302


def test_login_link_works_once(link: str) -> None:
    Client().post(link)
    second = Client()
    for answer in (second.get(link), second.post(link)):
        assert answer.status_code == 410
        assert "This link no longer works" in answer.text
    assert not is_logged_in(second)


def make_old(world: World) -> None:
    LoginLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))


def lock_out(world: World) -> None:
    world.ada.is_active = False
    world.ada.save()


@pytest.mark.parametrize("spoil", [make_old, lock_out])
def test_expired_link_or_inactive_user_cannot_log_in(spoil: Any, link: str, world: World) -> None:
    spoil(world)
    client = Client()
    assert client.get(link).status_code == 410
    assert client.post(link).status_code == 410
    assert not is_logged_in(client)


@pytest.mark.parametrize("path", ["/login/", "/login/never-existed/"])
def test_page_without_a_valid_link_names_every_way_to_a_new_one(path: str, db: None) -> None:
    html = Client().get(path).text
    for way in ("People", "make run", "manage.py create_demo", "manage.py login_link USER", "--port"):
        assert way in html, way


def test_invented_link_is_refused(world: World) -> None:
    assert Client().post("/login/invented/").status_code == 410


def test_login_link_requires_a_csrf_token(link: str) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post(link).status_code == 403
    assert Client().get(link).status_code == 200, "the refused attempt did not use up the link"


def test_log_never_contains_the_login_secret(link: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = link.split("/")[2]
    caplog.handler.addFilter(LoginSecretFilter())
    with caplog.at_level(logging.DEBUG):
        Client(enforce_csrf_checks=True).post(link)
        Client().post(link)
        Client().get(link)
    assert "/login/…" in caplog.text
    assert secret not in caplog.text
    assert not [record for record in caplog.records if secret in str(vars(record))]


def test_login_link_page_does_not_leak_its_address(link: str) -> None:
    answer = Client().get(link)
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert "no-store" in answer.headers["Cache-Control"]


def test_password_login_works(world: World) -> None:
    client = Client()
    answer = client.post("/login/?next=/x", {"username": "ada", "password": "lovelace", "next": "/tasks/"})
    assert answer.headers["Location"] == "/tasks/"


def test_login_never_redirects_to_another_site(world: World) -> None:
    form = {"username": "ada", "password": "lovelace", "next": "https://elsewhere.example/"}
    assert Client().post("/login/", form).headers["Location"] == "/"


def test_logout_requires_post(ada: Client) -> None:
    assert ada.get("/logout/").status_code == 405
    ada.post("/logout/")
    assert not is_logged_in(ada)


@pytest.mark.parametrize("path", ["/", "/live/", "/tasks/00000000-0000-0000-0000-000000000000/"])
def test_pages_require_a_login(path: str, db: None) -> None:
    assert Client().get(path).headers["Location"].startswith("/login/?next=")


def test_login_link_command_prints_a_working_link(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("login_link", "ada", port=8123)
    printed = capsys.readouterr()
    link = printed.out.strip()
    assert link.startswith("http://kandev.localhost:8123/login/")
    assert "use 127.0.0.1:8123 instead" in printed.err
    client = Client(HTTP_HOST="kandev.localhost:8123")
    assert client.post(link.removeprefix("http://kandev.localhost:8123")).status_code == 302
    assert is_logged_in(client)


def test_login_link_command_refuses_inactive_and_unknown_users(world: World) -> None:
    lock_out(world)
    for name in ("ada", "nobody"):
        with pytest.raises(CommandError, match=f"no active user '{name}'"):
            call_command("login_link", name)


def test_public_installation_uses_its_own_address_in_links(
    world: World, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://kandev.example"]
    call_command("login_link", "ada")
    assert capsys.readouterr().out.startswith("https://kandev.example/login/")
