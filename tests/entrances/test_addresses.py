"""Every address of the pages and of the API that accepts a body, with the bodies of the authorization matrix."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from tests.entrances.shapes import SIZES, fill, many_fields, mixture, nested
from tests.growth import measure_growth
from tests.rights.matrix import API, PAGES, Row
from tests.rights.test_matrix import ROUTES
from tests.rights.world import Cast, browsers, make_cast
from tests.transaction_guard import of_the_test

pytestmark = pytest.mark.any_database  # only the processor time of our own processes is measured

BODIES = ("post", "put", "patch")
TABLE = {**API, **PAGES}
ADDRESSES = sorted((route, method) for route, methods in ROUTES.items() for method in methods if method in BODIES)


@pytest.fixture(scope="module")
def shared_cast(shared_rows: None) -> Cast:
    """Return the users and objects, created once."""
    return make_cast()


@pytest.fixture
def clients(shared_cast: Cast, db: None) -> dict[str, Client]:
    """Return a logged-in browser for each role."""
    return browsers(shared_cast)


def body_of(row: Row, size: int) -> dict[str, Any]:
    """Return a body of about ``size`` characters: all shapes of text in its fields, and fields that nobody knows."""
    known: dict[str, Any] = fill(dict(row.body) or {"text": ""}, mixture(size // 3))
    return many_fields(size // 3) | {"unknown": nested(size // 3)} | known


def ask(client: Client, cast: Cast, route: str, method: str, row: Row, body: Any) -> None:
    """Send one request, whatever the answer, and undo what it wrote."""
    names = {**cast.names, **row.names}
    path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: str(names[found[1]]), route)
    with of_the_test():
        if route.startswith(("api/", "mcp")):
            answer = client.generic(method.upper(), path, json.dumps(body), "application/json")
        else:
            answer = getattr(client, method)(path, {name: _as_text(value) for name, value in body.items()})
        transaction.set_rollback(True)
    assert answer.status_code < 500 or answer.status_code in row.statuses, (
        f"{method.upper()} {route}: {answer.status_code}"
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(("route", "method"), ADDRESSES, ids=[f"{method}-{route}" for route, method in ADDRESSES])
def test_body_costs_at_most_in_proportion_to_its_size(
    shared_cast: Cast, clients: dict[str, Client], route: str, method: str
) -> None:
    row = TABLE[route][method]
    role = "staff" if row.expected()["member"] in (403, 404) else "member"
    growth = measure_growth(
        lambda body: ask(clients[role], shared_cast, route, method, row, body),
        lambda size: body_of(row, size),
        sizes=SIZES,
    )
    growth.assert_bounded()
