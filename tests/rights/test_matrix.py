"""The authorization matrix: every page and every address of the API, by every role."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest
from django.test import Client

from tests.rights.matrix import API, PAGES, Methods, Row
from tests.rights.urls import addresses
from tests.rights.world import ROLES, Cast, attempt, browsers, make_cast

pytestmark = pytest.mark.any_database

TABLE: dict[str, Methods] = {**API, **PAGES}
ROUTES = {route: methods for route, methods in addresses().items() if not route.startswith("admin/")}
HOW_TO = "has no row: say in tests/rights/matrix.py what each role gets"


@pytest.fixture(scope="module")
def shared_cast(shared_rows: None) -> Cast:
    return make_cast()


@pytest.fixture
def cast(shared_cast: Cast, db: None) -> Cast:
    return deepcopy(shared_cast)


def fill_names(cast: Cast, value: Any) -> Any:
    if isinstance(value, list):
        return [fill_names(cast, one) for one in value]
    return value.format(**cast.names) if isinstance(value, str) else value


def ask(client: Client, cast: Cast, route: str, method: str, row: Row) -> int:
    names = {**cast.names, **row.names}
    path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: str(names[found[1]]), route) + f"?{row.query}"
    body = {name: fill_names(cast, value) for name, value in row.body.items()}
    if method == "get":
        return client.get(path).status_code
    if route.startswith("api/"):
        return client.generic(method.upper(), path, json.dumps(body), "application/json").status_code
    return getattr(client, method)(path, body).status_code  # type: ignore[no-any-return]


@pytest.mark.parametrize("route", sorted({*ROUTES, *TABLE}))
def test_every_address_has_a_row_for_each_of_its_methods(route: str) -> None:
    assert route in ROUTES, f"{route!r} does not exist: delete its row"
    for method in ROUTES[route]:
        assert method in TABLE.get(route, {}), f"{method.upper()} {route!r} {HOW_TO}"
    assert set(TABLE[route]) == set(ROUTES[route])


@pytest.mark.parametrize("route", sorted(TABLE))
def test_each_role_gets_the_status_of_the_table(cast: Cast, route: str) -> None:
    clients = browsers(cast)
    for method, row in TABLE[route].items():
        got = {role: attempt(lambda: ask(clients[role], cast, route, method, row)) for role in ROLES}  # noqa: B023
        assert got == row.expected(), f"{method.upper()} {route}"
