"""API tokens are named, hashed, scoped and expiring, and cannot manage tokens."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone
from rest_framework.authtoken.models import Token

from sessions_app.accounts import authorization, credentials
from sessions_app.accounts.models import ApiToken, Preferences
from tests.accounts.conftest import browser_of
from tests.pages.world import World, asks, ingest_lines

TOKENS = "/api/v1/tokens/"
TASKS = "/api/v1/tasks/"


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Token {key}"}


def minted(world: World, scope: str = "write") -> str:
    return ApiToken.mint(world.ada, "a program", scope, timedelta(days=1))[1]


def dump_database() -> str:
    """Return all values of every table as one string."""
    with connection.cursor() as cursor:
        found = []
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - names of tables
            found.append(str(cursor.fetchall()))
    return "".join(found)


def test_page_shows_a_new_token_once_and_stores_only_its_hash(ada: Client) -> None:
    response = ada.post("/settings/tokens/", {"name": "Nightly build", "scope": "write", "days": "30"})
    assert response.status_code == 201
    assert "no-store" in response.headers["Cache-Control"]
    key = re.search(r"kdv_[\w-]{43}", response.text)
    assert key is not None
    assert key[0] not in ada.get("/settings/tokens/").text
    assert key[0] not in dump_database()
    assert Client().get(TASKS, headers=with_key(key[0])).status_code == 200


def test_api_creates_lists_and_revokes_tokens(ada: Client, bob: Client, world: World) -> None:
    made = ada.post(TOKENS, {"name": "CI", "scope": "read", "days": 7}, content_type="application/json")
    assert made.status_code == 201
    key, token = made.json()["key"], made.json()["id"]
    (listed,) = ada.get(TOKENS).json()["results"]
    assert "key" not in listed
    assert (listed["name"], listed["scope"], listed["begins_with"]) == ("CI", "read", key[:8])
    assert bob.get(TOKENS).json()["count"] == 0
    assert bob.delete(f"{TOKENS}{token}/").status_code == 404
    assert Client().get(TASKS, headers=with_key(key)).status_code == 200
    assert ada.delete(f"{TOKENS}{token}/").status_code == 204
    assert Client().get(TASKS, headers=with_key(key)).status_code == 401
    assert ada.delete(f"{TOKENS}{token}/").status_code == 404


@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_token_cannot_manage_tokens(method: str, world: World) -> None:
    key = minted(world)
    path = f"{TOKENS}{ApiToken.objects.get().id}/" if method == "delete" else TOKENS
    response = getattr(Client(), method)(path, headers=with_key(key))
    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")
    assert ApiToken.objects.live().count() == 1


@pytest.mark.parametrize(
    "spoil",
    [
        {"revoked_at": timezone.now()},
        {"expires_at": timezone.now()},
    ],
    ids=["revoked", "ended"],
)
def test_expired_or_revoked_token_is_refused(spoil: dict[str, Any], world: World) -> None:
    key = minted(world)
    ApiToken.objects.update(**spoil)
    assert Client().get(TASKS, headers=with_key(key)).status_code == 401


class TestReadOnlyToken:
    def test_read_only_token_reads_and_changes_nothing(self, world: World) -> None:
        session = world.session()
        headers = with_key(minted(world, "read"))
        at = f"{TASKS}{session.task_id}/sessions/{session.id}/"
        assert Client().get(f"{at}status/", headers=headers).status_code == 200
        response = Client().post(f"{at}stop/", headers=headers)
        assert (response.status_code, response.json()["code"]) == (403, "permission_denied")
        assert not session.intents.filter(kind="stop").exists()

    def test_read_only_token_sees_no_permission_key(self, world: World) -> None:
        session = world.running_session()
        ingest_lines(session, asks())
        at = f"{TASKS}{session.task_id}/sessions/{session.id}/permissions/"
        for scope, shown in (("read", False), ("write", True)):
            (listed,) = Client().get(at, headers=with_key(minted(world, scope))).json()["results"]
            assert bool(listed["resume_token"]) is shown, scope

    def test_read_only_token_has_the_rights_of_a_viewer(self, world: World) -> None:
        found = credentials.authenticate_token(minted(world, "read"))
        assert found is not None
        assert not authorization.may_write(found[0], world.team)
        assert authorization.may_write(world.ada, world.team)


def test_last_use_is_written_once_an_hour(world: World) -> None:
    key, now = minted(world), timezone.now()
    for used, written in ((None, True), (now - timedelta(minutes=50), False), (now - timedelta(minutes=70), True)):
        ApiToken.objects.update(last_used_at=used)
        assert Client().get(TASKS, headers=with_key(key)).status_code == 200
        assert (ApiToken.objects.get().last_used_at != used) is written, used


def test_number_of_tokens_is_limited(ada: Client, world: World) -> None:
    for number in range(credentials.MAX_TOKENS):
        ApiToken.mint(world.ada, str(number), "read", None)
    response = ada.post("/settings/tokens/", {"name": "one more", "scope": "read", "days": "7"})
    assert response.status_code == 422
    assert "Revoke one" in response.text
    assert ada.post(TOKENS, {"name": "x"}, content_type="application/json").status_code == 409


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "x" * 101}, {"scope": "all"}, {"days": 0}, {"days": 366}, {"days": None}]
)
def test_api_refuses_an_invalid_token_request(wrong: dict[str, Any], ada: Client) -> None:
    response = ada.post(TOKENS, {"name": "x", **wrong}, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (400, "validation_error")
    assert not ApiToken.objects.exists()


class TestDrfCreateToken:
    """``drf_create_token`` works and keeps its output format."""

    def key(self, capsys: pytest.CaptureFixture[str], *args: str) -> str:
        call_command("drf_create_token", *args)
        match = re.fullmatch(r"Generated token (\S+) for user (\w+)\n", capsys.readouterr().out)
        assert match is not None
        return match[1]

    def test_command_creates_a_working_token_and_stores_its_hash(
        self, world: World, capsys: pytest.CaptureFixture[str]
    ) -> None:
        key = self.key(capsys, "ada")
        assert Client().get(TASKS, headers=with_key(key)).status_code == 200
        assert ApiToken.objects.get().scope == "write"
        assert key not in dump_database()

    def test_command_replaces_only_tokens_of_the_same_name(
        self, world: World, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = self.key(capsys, "ada", "--name", "CI", "--scope", "read", "--days", "7")
        first, second = self.key(capsys, "ada"), self.key(capsys, "ada", "-r")
        works = [Client().get(TASKS, headers=with_key(key)).status_code for key in (other, first, second)]
        assert works == [200, 401, 200]

    @pytest.mark.parametrize("args", [("nobody",), ("ada", "--days", "0"), ("ada", "--scope", "all")])
    def test_command_refuses_invalid_arguments(self, args: tuple[str, ...], world: World) -> None:
        with pytest.raises(CommandError):
            call_command("drf_create_token", *args)
        assert not ApiToken.objects.exists()


def test_token_created_by_the_framework_works_and_is_stored_hashed(world: World) -> None:
    token = Token.objects.create(user=world.ada)
    assert Client().get(TASKS, headers=with_key(token.key)).status_code == 200
    assert token.key not in dump_database()


def test_prompt_sent_with_a_token_belongs_to_its_user(world: World) -> None:
    session = world.session()
    at = f"{TASKS}{session.task_id}/sessions/{session.id}/prompt/"
    body = {"message_id": "m", "text": "Go on."}
    response = Client().post(at, body, content_type="application/json", headers=with_key(minted(world)))
    assert response.status_code == 202
    assert session.prompts.get(message_id="m").by == world.ada


def test_token_opens_no_page(world: World) -> None:
    for path in ("/", "/settings/tokens/", "/admin/"):
        assert Client().get(path, headers=with_key(minted(world))).status_code == 302
    assert not Preferences.objects.exists()
    assert browser_of(world.ada).get("/settings/tokens/").status_code == 200
