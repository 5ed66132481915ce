"""Few passwords are hashed at once, and a flood of attempts keeps nobody out who is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.conf import settings as configured
from django.contrib.auth.hashers import PBKDF2PasswordHasher, check_password, make_password
from django.contrib.auth.models import User
from django.test import Client

from sessions_app.accounts import password_hasher
from sessions_app.accounts.password_hasher import RETRY_AFTER, HashingLane, LimitedPBKDF2, TooManyPasswords
from sessions_app.accounts.rate_limits import MAX_PER_ADDRESS, MAX_PER_NAME
from sessions_app.accounts.views.login import KNOWN_BROWSER_COOKIE
from sessions_app.accounts.views.profile import MAX_PASSWORD_ATTEMPTS
from tests.accounts.conftest import browser_of
from tests.pages.world import World
from tests.waiting import eventually

HASHERS = ["sessions_app.accounts.password_hasher.LimitedPBKDF2"]
RIGHT = {"username": "ada", "password": "lovelace"}
WRONG = {"username": "ada", "password": "wrong"}
CHANGE = {"old_password": "lovelace", "new_password1": "analytical 1843", "new_password2": "analytical 1843"}


@pytest.fixture(autouse=True)
def _quick_hashes(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PASSWORD_HASHERS = HASHERS
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 10)


@pytest.fixture
def world(world: World) -> World:
    world.ada.set_password("lovelace")
    world.ada.save()
    return world


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep every place of the strangers occupied."""
    lane = HashingLane(1, waiting=0)
    monkeypatch.setattr(password_hasher, "STRANGERS", lane)
    with lane.turn():
        yield


def test_kandev_hashes_with_the_limited_hasher() -> None:
    assert isinstance(make_hasher(), LimitedPBKDF2)


def make_hasher() -> object:
    name = configured.PASSWORD_HASHERS[0].rpartition(".")[2]
    return getattr(password_hasher, name)()


def test_stored_hashes_stay_valid() -> None:
    stored = PBKDF2PasswordHasher().encode("lovelace", "salt" * 6)
    assert check_password("lovelace", stored)
    assert make_password("lovelace").startswith("pbkdf2_sha256$")


class CountingHash:
    """A hash that ends when it is released, and counts how many run at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.is_released = threading.Event()
        self._lock = threading.Lock()

    def encode(self, *_: Any) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.is_released.wait(60)
        with self._lock:
            self.running -= 1
        return "hash"


def test_few_hashes_run_few_wait_and_more_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, outcomes = CountingHash(), list[str]()
    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", counting.encode)
    monkeypatch.setattr(password_hasher, "STRANGERS", HashingLane(2, waiting=3))

    def attempt() -> None:
        try:
            outcomes.append(LimitedPBKDF2().encode("password", "salt"))
        except TooManyPasswords:
            outcomes.append("refused")

    threads = [threading.Thread(target=attempt) for _ in range(9)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(outcomes) == 4, describe="all beyond the limits are refused")
    counting.is_released.set()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["hash"] * 5 + ["refused"] * 4
    assert counting.most <= 2


def change_password(client: Client) -> Any:
    return client.post("/settings/password/", CHANGE)


def add_user(client: Client) -> Any:
    password = {"password1": "analytical 1843", "password2": "analytical 1843", "usable_password": "true"}
    return client.post("/admin/auth/user/add/", {"username": "grace", **password})


@pytest.mark.parametrize("credentials", [RIGHT, WRONG, {**WRONG, "username": "unknown"}])
def test_password_that_would_wait_too_long_is_refused_and_not_counted(
    credentials: dict[str, str], world: World, flood: None
) -> None:
    for _ in range(max(MAX_PER_ADDRESS, MAX_PER_NAME) + 1):
        response = Client().post("/login/", credentials)
        assert (response.status_code, response["Retry-After"]) == (503, str(RETRY_AFTER))
        assert "Nothing was changed" in response.content.decode()


@pytest.fixture
def operator(db: None) -> Client:
    return browser_of(User.objects.create(username="operator", is_staff=True, is_superuser=True))


def test_page_of_the_admin_that_sets_a_password_is_served_during_a_flood(operator: Client, flood: None) -> None:
    assert add_user(operator).status_code == 302
    assert User.objects.filter(username="grace").exists()


def test_page_of_the_admin_that_sets_a_password_is_refused_during_a_flood_of_known_people(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = HashingLane(1, waiting=0)
    monkeypatch.setattr(password_hasher, "KNOWN", lane)
    with lane.turn():
        response = add_user(operator)
    assert (response.status_code, response["Retry-After"]) == (503, str(RETRY_AFTER))
    assert not User.objects.filter(username="grace").exists()


def test_known_people_are_served_during_a_flood(world: World, request: pytest.FixtureRequest) -> None:
    known = Client()
    assert known.post("/login/", RIGHT).status_code == 302
    request.getfixturevalue("flood")
    assert Client().post("/login/", RIGHT).status_code == 503
    again = Client()
    again.cookies[KNOWN_BROWSER_COOKIE] = known.cookies[KNOWN_BROWSER_COOKIE].value
    assert again.post("/login/", RIGHT).status_code == 302
    assert change_password(again).status_code == 302


def test_flood_of_known_people_is_limited_and_not_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = browser_of(world.ada)
    lane = HashingLane(1, waiting=0)
    monkeypatch.setattr(password_hasher, "KNOWN", lane)
    with lane.turn():
        statuses = {change_password(client).status_code for _ in range(MAX_PASSWORD_ATTEMPTS + 1)}
    assert statuses == {503}
    assert change_password(client).status_code == 302


def test_wrong_password_with_an_old_hash_counts_during_a_flood(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 20)
    encode: Callable[..., str] = PBKDF2PasswordHasher.encode
    with ExitStack() as others:

        def encode_and_flood(*arguments: Any) -> str:
            hashed = encode(*arguments)
            others.enter_context(lane.turn())
            return hashed

        lane = HashingLane(2, waiting=0)
        monkeypatch.setattr(password_hasher, "STRANGERS", lane)
        monkeypatch.setattr(PBKDF2PasswordHasher, "encode", encode_and_flood)
        assert Client().post("/login/", WRONG).status_code == 200
