"""Login attempts are counted in the database: a flood evicts no count and does not lock out known users."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import signing
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from sessions_app.accounts import models, rate_limits
from sessions_app.accounts.client_address import network_of_address
from sessions_app.accounts.models import ApiToken, AttemptCount, LoginLink
from sessions_app.accounts.rate_limits import (
    MAX_IN_TOTAL,
    MAX_PER_ADDRESS,
    MAX_PER_NAME,
    AttemptLimit,
    LoginAttempt,
    attempt_key,
)
from sessions_app.accounts.views.login import KNOWN_BROWSER_COOKIE
from sessions_app.maintenance.chore_run import ChoreRun
from sessions_app.maintenance.chores import clean_logins
from tests.pages.world import World

ADDRESS = "203.0.113.1"


def address(number: int) -> str:
    return f"198.51.{number // 200}.{number % 200}"


def guess(name: str, caller: str, browser: str = "") -> bool:
    """Record a wrong guess; return whether it was allowed."""
    return LoginAttempt(name, caller, browser).count_and_check()


def log_in(caller: str, given: str = "lovelace", client: Client | None = None) -> int:
    credentials = {"username": "ada", "password": given}
    return (client or Client()).post("/login/", credentials, REMOTE_ADDR=caller).status_code


def test_attempt_is_counted_before_it_is_made(db: None) -> None:
    limit = AttemptLimit("test", 2, 60)
    assert [limit.admits("a") for _ in range(3)] == [True, True, False]
    assert limit.admits("b")
    limit.forgive("a")
    assert limit.admits("a")
    assert 0 < limit.seconds_left("a") <= 60


def test_count_ends_with_its_window(db: None) -> None:
    limit = AttemptLimit("test", 1, 60)
    assert (limit.admits("a"), limit.admits("a")) == (True, False)
    AttemptCount.objects.update(ends_at=timezone.now() - timedelta(seconds=1))
    assert (limit.admits("a"), limit.admits("a")) == (True, False)


@pytest.mark.any_database
def test_three_hundred_other_addresses_do_not_evict_a_count(db: None) -> None:
    for _ in range(MAX_PER_ADDRESS):
        guess(f"name{_}", ADDRESS)
    for number in range(300):
        guess(f"other{number}", address(number))
    cache.clear()  # as another process would see it, or this one after a restart
    assert not guess("ada", ADDRESS)


@pytest.mark.any_database
class TestWrongPasswordsFrom300Addresses:
    @pytest.fixture(autouse=True)
    def attacked(self, world: World) -> None:
        for number in range(300):
            guess("ada", address(number))

    def test_correct_password_works_from_a_new_address(self) -> None:
        assert log_in(ADDRESS) == 302

    def test_each_network_has_one_guess_at_a_time(self) -> None:
        assert [log_in(ADDRESS, "wrong"), log_in(ADDRESS, "wrong"), log_in(ADDRESS)] == [429] * 3
        assert {guess("ada", address(number)) for number in range(20, 300)} == {False}

    def test_unknown_names_are_limited_equally(self) -> None:
        for number in range(300):
            guess("nobody", address(number))
        response = Client().post("/login/", {"username": "nobody", "password": "x"}, REMOTE_ADDR=ADDRESS)
        assert response.status_code == 429


def test_known_browser_does_not_wait_for_other_guessers(world: World) -> None:
    client = Client()
    assert log_in(ADDRESS, client=client) == 302
    del client.cookies["kandev_session"]
    for number in range(30):
        guess("ada", address(number))
        guess(f"name{number}", ADDRESS)
    assert log_in(ADDRESS) == 429
    assert log_in(ADDRESS, "wrong", client) == 200
    assert log_in(ADDRESS, client=client) == 302


def test_login_link_makes_a_browser_known(world: World, settings: Any) -> None:
    settings.SESSION_COOKIE_SECURE = True
    client = Client()
    client.post(f"/login/{LoginLink.mint(world.ada)}/")
    kept = client.cookies[KNOWN_BROWSER_COOKIE]
    assert (kept["httponly"], kept["secure"], kept["samesite"], kept["path"]) == (True, True, "Lax", "/")
    assert rate_limits._read_known_browser(kept.value, "ada")


def test_known_browser_counts_only_for_its_own_name_and_has_a_limit(db: None) -> None:
    cookie = rate_limits.make_known_browser_cookie("ada")
    for number in range(MAX_PER_NAME):
        guess("bob", address(number))
        guess("ada", address(number))
    assert [guess("ada", ADDRESS, cookie) for _ in range(MAX_PER_NAME + 2)] == [True] * (MAX_PER_NAME + 1) + [False]
    assert guess("bob", ADDRESS, cookie)
    assert not guess("bob", ADDRESS, cookie)


@pytest.mark.parametrize(
    ("response", "salt"),
    [
        ("ada", rate_limits._SALT),
        (["ada", "1"], rate_limits._SALT),
        ([attempt_key("login-name", "ada"), "1"], "another"),
    ],
)
def test_forged_cookie_makes_no_browser_known(response: Any, salt: str) -> None:
    for cookie in (signing.dumps(response, salt=salt), "", "nonsense", "a:b:c"):
        assert not rate_limits._read_known_browser(cookie, "ada")


def test_one_password_tried_with_many_names_is_throttled(db: None) -> None:
    for number in range(MAX_IN_TOTAL):
        guess(f"name{number}", address(number))
    assert [guess("another", ADDRESS) for _ in range(2)] == [True, False]


def test_guesses_from_many_networks_for_one_name_are_stopped(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "_strangers_per_name_limit", AttemptLimit("login-crowd", 5, 3600))
    messages = [guess("ada", address(number)) for number in range(MAX_PER_NAME + 6)]
    assert messages == [True] * (MAX_PER_NAME + 5) + [False]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "", True),
    ],
)
def test_caller_is_an_ipv4_address_or_an_ipv6_64_network(one: str, other: str, is_same: bool) -> None:
    assert (network_of_address(one) == network_of_address(other)) is is_same


def test_one_ipv6_network_is_one_caller(world: World) -> None:
    for number in range(MAX_PER_ADDRESS):
        guess(f"name{number}", f"2001:db8::{number:x}")
    assert log_in("2001:db8::ffff") == 429
    assert log_in("2001:db8:0:1::1") == 302


class TestWrongKeys:
    """Wrong keys of the API, of waits and of login links are throttled, and a correct key is never refused."""

    def wrong_token(self, caller: str = ADDRESS) -> Any:
        return APIClient(REMOTE_ADDR=caller, HTTP_AUTHORIZATION="Token kdv_guess").get("/api/v1/tasks/")

    def test_wrong_api_keys_are_throttled(self, world: World) -> None:
        key = ApiToken.mint(world.ada, "build", ApiToken.Scope.READ, None)[1]
        statuses = [self.wrong_token().status_code for _ in range(31)]
        assert statuses == [401] * 30 + [429]
        refused = self.wrong_token()
        assert (refused.json()["code"], int(refused["Retry-After"]) > 0) == ("throttled", True)
        right = APIClient(REMOTE_ADDR=ADDRESS, HTTP_AUTHORIZATION=f"Token {key}")
        assert right.get("/api/v1/tasks/").status_code == 200

    def test_wrong_keys_from_300_addresses_evict_no_count(self, world: World) -> None:
        for _ in range(30):
            self.wrong_token()
        for number in range(300):
            assert self.wrong_token(address(number)).status_code == 401
        assert self.wrong_token().status_code == 429

    def test_wrong_login_links_are_throttled(self, world: World) -> None:
        client = Client(REMOTE_ADDR=ADDRESS)
        assert [client.get(f"/login/guess-{number}/").status_code for number in range(31)] == [410] * 30 + [429]
        assert client.post(f"/login/{LoginLink.mint(world.ada)}/").status_code == 302


class TestAttemptRows:
    def test_expired_attempts_are_deleted(self, db: None) -> None:
        AttemptLimit("test", 1, 60).admits("over")
        AttemptCount.objects.update(ends_at=timezone.now() - timedelta(seconds=1))
        AttemptLimit("test", 1, 60).admits("goes on")
        clean_logins(ChoreRun("logins"))
        assert AttemptCount.objects.count() == 1

    def test_rows_are_limited_and_the_oldest_are_deleted(self, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "MAX_ATTEMPT_ROWS", 10)
        kept = AttemptLimit("login-name", 1, 3600)
        kept.admits("ada")
        for number in range(20):
            AttemptLimit("wrong-key", 30, 60).admits(address(number))
        AttemptCount.trim()
        assert (AttemptCount.objects.count(), kept.admits("ada")) == (10, False)

    def test_rows_contain_neither_name_nor_address(self, db: None) -> None:
        guess("ada", ADDRESS)
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM attempt_counts")
            stored = str(cursor.fetchall())
        assert "ada" not in stored and ADDRESS not in stored
