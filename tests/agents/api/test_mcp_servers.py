"""MCP servers of teams and repositories: who changes them, and what a list may contain."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from sessions_app.accounts.models import TeamRole
from sessions_app.agents.services import mcp_servers
from sessions_app.kernel.locking import refuse_in_transaction
from sessions_app.models import McpServerList
from tests.api.world import SECRET, World, client_of, person

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

DOCS = {"name": "docs", "type": "http", "url": "https://docs.example/mcp", "headers": {"Authorization": "secret:TOKEN"}}
FILES = {"name": "files", "command": "files", "args": ["-v"], "env": {"LEVEL": "info"}}
PROGRAM_REFUSED = 403


@pytest.fixture
def admin(world: World) -> User:
    """Return an admin of the team who is not staff."""
    user = person("admin", world.team)
    TeamRole.objects.create(user=user, team=world.team, role=TeamRole.Role.ADMIN)
    return user


def urls(world: World) -> tuple[str, str]:
    return (
        f"/api/v1/teams/{world.team.pk}/mcp-servers/",
        f"/api/v1/repositories/{world.repository.pk}/mcp-servers/",
    )


def put(user: User, url: str, *servers: Any) -> Any:
    return client_of(user).put(url, {"servers": list(servers)}, format="json")


def test_admin_of_the_team_replaces_both_lists(world: World, admin: User) -> None:
    for url in urls(world):
        answer = put(admin, url, DOCS)
        assert (answer.status_code, answer.json()["servers"]) == (200, [DOCS]), answer.content
        assert client_of(world.member).get(url).json() == answer.json()
        assert answer.json()["updated_by"] == "admin"
    assert McpServerList.objects.count() == 2


def test_members_and_strangers_change_nothing(world: World) -> None:
    for url in urls(world):
        assert put(world.member, url, DOCS).status_code == 403
        assert put(world.stranger, url, DOCS).status_code == 404
    assert not McpServerList.objects.exists()


def test_adding_a_program_requires_the_right_to_operate_without_isolation(world: World, admin: User) -> None:
    url = urls(world)[0]
    assert put(admin, url, FILES).status_code == PROGRAM_REFUSED
    assert put(world.staff, url, FILES).status_code == 200
    assert put(admin, url, FILES, DOCS).status_code == 200, "an existing program may stay"
    assert put(admin, url, {**FILES, "args": ["-q"]}).status_code == PROGRAM_REFUSED
    world.team.permissions.add(Permission.objects.get(codename="operate_unisolated"))
    assert put(admin, url, {**FILES, "args": ["-q"]}).status_code == 200


def test_long_list_is_refused_before_it_is_searched_for_secrets(
    world: World, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []

    def search(text: str) -> bool:
        searched.append(text)
        return False

    monkeypatch.setattr(mcp_servers, "_looks_secret", search)
    servers = [{"name": f"s{n}", "url": "https://docs.example/" + "key" + "+" * 9000} for n in range(8)]
    for servers_put, status in ((servers, 400), (servers[:7], 200)):
        searched.clear()
        assert put(admin, urls(world)[0], *servers_put).status_code == status
        assert bool(searched) is (status == 200)


def test_only_new_servers_are_searched_and_outside_the_transaction(
    world: World, admin: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(admin, urls(world)[0], DOCS).status_code == 200
    searched: list[str] = []

    def search(text: str) -> bool:
        refuse_in_transaction()
        searched.append(text)
        return False

    monkeypatch.setattr(mcp_servers, "_looks_secret", search)
    assert put(admin, urls(world)[0], DOCS, {"name": "more", "url": "https://more.example/"}).status_code == 200
    assert [text for text in searched if text] == ["https://more.example/"]


@pytest.mark.parametrize(
    "server",
    [
        {**DOCS, "headers": {"Authorization": f"Bearer {SECRET}"}},
        {**DOCS, "headers": {"X-Api-Key": SECRET}},
        {**DOCS, "url": f"https://docs.example/mcp?api_key={SECRET}"},
        {**DOCS, "headers": {"X": "ghp_" + "a1B2" * 9}},
        {**FILES, "args": ["--header", "Bearer ghp_" + "a1B2" * 9]},
        {**FILES, "env": {"GITHUB_TOKEN": SECRET}},
        {"name": "docs"},
    ],
    ids=["header", "key", "query", "format", "argument", "variable", "neither"],
)
def test_secret_in_place_of_a_reference_is_refused(world: World, server: dict[str, Any]) -> None:
    answer = put(world.staff, urls(world)[0], server)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")
    assert list(answer.json()["details"]) == ["servers"]
    assert SECRET not in answer.content.decode()
    assert not McpServerList.objects.exclude(servers=[]).exists()


@pytest.mark.parametrize("server", [{**DOCS, "headers": {"X": "http://["}}, {**FILES, "args": ["http://[x"]}])
def test_text_that_only_looks_like_an_address_is_accepted(world: World, server: dict[str, Any]) -> None:
    assert put(world.staff, urls(world)[0], server).status_code == 200


def test_page_adds_replaces_and_removes_a_server(world: World, admin: User) -> None:
    browser = Client()
    browser.force_login(admin)
    pages = (f"teams/{world.team.pk}", f"repositories/{world.repository.pk}")
    for url in (f"/settings/{page}/mcp-servers/" for page in pages):
        form = {"name": "docs", "kind": "http", "target": DOCS["url"], "values": "Authorization=Bearer secret:TOKEN"}
        assert browser.post(url, form).status_code == 302
        assert browser.post(url, {**form, "target": "https://new.example/"}).status_code == 302
        page = browser.get(url).content.decode()
        assert "https://new.example/" in page and "Bearer secret:TOKEN" in page
        assert browser.post(url, {"remove": "docs"}).status_code == 302
        assert not McpServerList.objects.exclude(servers=[]).exists()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"kind": "program", "target": "npx files"}, "A program runs where agents run"),
        ({"kind": "program", "target": "npx 'files"}, "This is not a valid command"),
        ({"kind": "http", "target": "ftp://a/"}, "must be an http or https address"),
        ({"kind": "http", "target": "https://a/", "values": "nonsense"}, "Write each as NAME=value"),
        ({"kind": "http", "target": "https://a/", "values": "X-Key=abc"}, "looks like a secret"),
    ],
)
def test_page_says_why_a_server_is_refused(world: World, admin: User, form: dict[str, str], text: str) -> None:
    browser = Client()
    browser.force_login(admin)
    answer = browser.post(f"/settings/teams/{world.team.pk}/mcp-servers/", {"name": "one", **form})
    assert answer.status_code == 422
    assert text in answer.content.decode()
