"""Each page and form answers on PostgreSQL as the table says; the tests of most pages run on SQLite alone."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.rights.matrix import PAGES, Row
from tests.rights.test_matrix import ask
from tests.rights.world import Cast, attempt, make_cast


def answer_to_member(cast: Cast, route: str, method: str, row: Row) -> int:
    """Return the status that a member gets who has just logged in."""
    client, member = Client(), cast.people["member"]
    assert member is not None
    client.force_login(member)
    return attempt(lambda: ask(client, cast, route, method, row))


@pytest.mark.postgresql
@pytest.mark.django_db
def test_every_page_and_form_answers_a_member_on_postgresql() -> None:
    cast = make_cast()
    rows = {(route, method): row for route, methods in PAGES.items() for method, row in methods.items()}
    answers = {(route, method): answer_to_member(cast, route, method, row) for (route, method), row in rows.items()}
    assert answers == {each: row.expected()["member"] for each, row in rows.items()}
