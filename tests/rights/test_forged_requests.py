"""Requests forged by other sites: forms sent with a user's cookies are refused without the page's own token."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from django.test import Client

from tests.rights.matrix import API, PAGES, Methods, Row
from tests.rights.test_matrix import ask
from tests.rights.world import ROLES, Cast, attempt, make_cast

pytestmark = pytest.mark.any_database

SAFE = {"get", "head", "options"}
WITHOUT_LOGIN = {"api/v1/runs/resume/"}
"""The body is the credential: cookies do not count there, so none can be abused."""
UNSAFE = [
    (route, method)
    for route, methods in {**API, **PAGES}.items()
    for method in methods
    if method not in SAFE and not set(methods[method].statuses) <= {404, 405} and route not in WITHOUT_LOGIN
]


@pytest.fixture(scope="module")
def shared_cast(shared_rows: None) -> Cast:
    return make_cast()


@pytest.fixture
def cast(shared_cast: Cast, db: None) -> Cast:
    return deepcopy(shared_cast)


def row_of(route: str, method: str) -> Row:
    table: dict[str, Methods] = {**API, **PAGES}
    return table[route][method]


@pytest.mark.parametrize(("route", "method"), UNSAFE)
def test_forged_request_is_refused_for_every_role(cast: Cast, route: str, method: str) -> None:
    for role in ROLES:
        user = cast.people[role]
        if user is None:
            continue
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(user)
        row = row_of(route, method)
        assert attempt(lambda: ask(browser, cast, route, method, row)) == 403, role  # noqa: B023


def test_our_token_does_not_help_a_page_of_another_origin(cast: Cast) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(cast.world.member)
    browser.get("/")
    token = browser.cookies["kandev_csrf"].value
    path = f"/tasks/{cast.world.task.id}/done/"
    theirs = {"csrfmiddlewaretoken": token}
    assert browser.post(path, theirs, headers={"origin": "http://evil.example"}).status_code == 403
    assert browser.post(path, theirs, headers={"origin": "null"}).status_code == 403
    assert browser.post(path, theirs).status_code == 302


def test_body_that_a_form_can_send_is_not_accepted_as_json(cast: Cast) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(cast.world.member)
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = browser.generic("POST", "/api/v1/tasks/", json.dumps({"title": "x"}), content_type)
        assert answer.status_code in {403, 415}, content_type


def test_wait_key_works_without_login_and_ignores_cookies(cast: Cast) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(cast.world.member)
    body = json.dumps({"resume_token": "kwt_nonsense", "payload": {}, "idempotency_key": "a"})
    answer = browser.post("/api/v1/runs/resume/", body, content_type="application/json")
    assert answer.json()["code"] == "token_invalid"


@pytest.mark.parametrize("path", ["/", "/login/", "/healthz", "/readyz", "/metrics", "/api/v1/tasks/", "/admin/"])
def test_foreign_host_name_is_not_served(path: str, cast: Cast) -> None:
    browser = Client()
    browser.force_login(cast.world.member)
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "localhost@evil.example"):
        answer = browser.get(path, headers={"host": host})
        assert answer.status_code == 400, host
        assert host not in answer.text
