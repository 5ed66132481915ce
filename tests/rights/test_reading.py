"""Opening an address changes nothing: a link in a mail, a chat or an agent's text is nobody's consent."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Final

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.rights.test_matrix import TABLE, ask
from tests.rights.world import ROLES, Cast, attempt, browsers, make_cast

pytestmark = pytest.mark.any_database

WRITES: Final = re.compile(r'^(?:INSERT INTO|UPDATE|DELETE FROM) "(\w+)"')
OF_THE_VISIT: Final = frozenset({"django_session", "auth_user", "attempt_counts", "api_tokens"})
"""What a visit itself may write: the browser's session, last login, counters of guesses, when a token was last used."""
TEMPTING: Final = (
    "next=https://evil.example/&action=stop&method=demo&option_id=allow&prompt=Delete+it&login=1&mode=auto&_method=post"
)


@pytest.fixture(scope="module")
def shared_cast(shared_rows: None) -> Cast:
    return make_cast()


@pytest.fixture
def cast(shared_cast: Cast, db: None) -> Cast:
    return deepcopy(shared_cast)


@pytest.mark.parametrize("route", sorted(route for route, methods in TABLE.items() if "get" in methods))
def test_opening_an_address_writes_nothing(cast: Cast, route: str) -> None:
    row = TABLE[route]["get"]
    clients = browsers(cast)
    with CaptureQueriesContext(connection) as queries:
        for role in ROLES:
            for query in filter(None, (row.query or "a=1", f"{row.query}&{TEMPTING}")):
                attempt(lambda: ask(clients[role], cast, route, "get", row.asking(query)))  # noqa: B023
    found = (WRITES.match(each["sql"]) for each in queries)
    assert {each[1] for each in found if each} <= OF_THE_VISIT
