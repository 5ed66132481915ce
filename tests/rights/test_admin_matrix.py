"""The authorization matrix of the admin: every page of every model, and every action."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client, RequestFactory

from sessions_app.models import Intent, SweepRequest
from tests.rights.admin_matrix import ACTIONS, MODELS, SITE
from tests.rights.matrix import Methods
from tests.rights.urls import addresses
from tests.rights.world import ROLES, Cast, attempt, browsers, make_full_cast

pytestmark = pytest.mark.any_database

ROUTES = {
    re.sub(r"\(\?P<app_label>[^)]*\)", "<app_label>", route.removeprefix("admin/"))
    for route in addresses()
    if route.startswith("admin/")
}
TABLE: dict[str, Methods] = {
    **SITE,
    **{f"{model}/{page}": methods for model, pages in MODELS.items() for page, methods in pages.items()},
}
HOW_TO = "has no row: say in tests/rights/admin_matrix.py what staff gets"
REGISTERED = {f"{model._meta.app_label}/{model._meta.model_name}": model for model in admin.site._registry}


@pytest.fixture(scope="module")
def shared_cast(shared_rows: None) -> Cast:
    return make_full_cast()


@pytest.fixture
def cast(shared_cast: Cast, db: None) -> Cast:
    return deepcopy(shared_cast)


@pytest.mark.parametrize("route", sorted({*ROUTES, *TABLE}))
def test_every_admin_address_has_a_row(route: str) -> None:
    assert route in ROUTES, f"{route!r} does not exist: delete its row"
    assert route in TABLE, f"{route!r} {HOW_TO}"


def compare(clients: dict[str, Client], path: str, methods: Methods) -> None:
    for method, row in methods.items():
        got = {role: attempt(lambda: getattr(clients[role], method)(path).status_code) for role in ROLES}  # noqa: B023
        assert got == row.expected(), f"{method.upper()} {path}"


@pytest.mark.parametrize("model", sorted(MODELS))
def test_only_staff_can_open_the_pages_of_a_model(cast: Cast, model: str) -> None:
    key = quote(str(REGISTERED[model]._default_manager.all()[0].pk))
    clients = browsers(cast)
    for page, methods in MODELS[model].items():
        compare(clients, f"/admin/{model}/{page}".replace("<path:object_id>", key).replace("<id>", key), methods)


@pytest.mark.parametrize("page", sorted(SITE))
def test_only_staff_can_open_the_pages_of_the_site(cast: Cast, page: str) -> None:
    shown = {
        "^<app_label>": "sessions_app/",
        "sessions_app/(?P<model>": "sessions_app/workflow/",
        "(?P<url>": "nothing/of/that/kind/",
        "r/": "r/1/1/",
    }
    path = next((path for start, path in shown.items() if page.startswith(start)), page)
    for method, row in SITE[page].items():
        clients = browsers(cast)  # new ones, because one of the pages logs out
        compare(clients, f"/admin/{path}", {method: row})


def test_every_model_has_exactly_the_listed_actions(cast: Cast, rf: RequestFactory) -> None:
    request = rf.get("/")
    operator = cast.people["staff"]
    assert operator is not None
    request.user = operator
    there = {
        name: frozenset(admin.site._registry[model].get_actions(request))
        for name, model in REGISTERED.items()
        if name not in {"auth/user", "auth/group"}
    }
    assert {name: actions for name, actions in there.items() if actions} == ACTIONS


CALLS = [(model, action) for model, actions in ACTIONS.items() for action in sorted(actions)]


@pytest.mark.parametrize(("model", "action"), CALLS)
def test_only_staff_can_run_an_action(cast: Cast, model: str, action: str) -> None:
    rows = REGISTERED[model]._default_manager.all()
    form = {"action": action, "_selected_action": [str(rows[0].pk)]}

    def row_counts() -> tuple[int, ...]:
        return (rows.count(), Intent.objects.filter(done_at=None).count(), SweepRequest.objects.count())

    before = row_counts()
    for role, client in browsers(cast).items():
        status = client.post(f"/admin/{model}/", form).status_code
        assert status == (200 if (role, action) == ("staff", "delete_selected") else 302), role
        assert role == "staff" or row_counts() == before, role


def test_every_model_of_ours_is_in_the_table() -> None:
    ours = [model for model in apps.get_models() if model.__module__.startswith(("sessions_app.", "executors_app."))]
    names: set[Any] = {f"{model._meta.app_label}/{model._meta.model_name}" for model in ours}
    assert names <= set(MODELS)
