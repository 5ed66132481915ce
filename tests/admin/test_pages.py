"""Every page of the admin opens, needs a constant number of queries, and shows no secret."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from sessions_app.accounts.models import ApiToken, LoginLink
from tests.admin.everything import SECRET, browser, make_set, superuser
from tests.pages.inline import foreign_inline
from tests.transaction_guard import of_the_test

pytestmark = pytest.mark.any_database

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
OURS = [model for model in apps.get_models() if model.__module__.startswith(("sessions_app.", "executors_app."))]
OUTSIDE = re.compile(r"(?:src|href|action|formaction)=\"(?:[a-z]+:)?//", re.IGNORECASE)
MANY = 4
"""Enough rows to notice a query for each of them."""


def address(model: Any, page: str, *args: Any) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def ids(models: list[Any]) -> list[str]:
    return [model._meta.label_lower for model in models]


@pytest.fixture
def root(db: None) -> Client:
    return browser(superuser())


def pages_of(model: Any) -> list[str]:
    """Return the URLs of the list, of the form for a new row, and of the first row's pages."""
    row = model._default_manager.first()
    rows = [address(model, page, quote(row.pk)) for page in ("change", "history", "delete")]
    return [address(model, "changelist"), f"{address(model, 'changelist')}?q=x", address(model, "add"), *rows]


@pytest.mark.parametrize("model", OURS, ids=ids(OURS))
def test_every_model_has_its_pages(model: Any) -> None:
    assert model in admin.site._registry, f"register {model.__name__} in {model._meta.app_label}'s admin"


@pytest.mark.parametrize("model", MODELS, ids=ids(MODELS))
def test_list_can_be_searched_and_filtered(model: Any) -> None:
    shown = admin.site._registry[model]
    assert shown.search_fields or shown.list_filter
    assert len(shown.list_display) > 1
    dated = any(type(field).__name__ == "DateTimeField" for field in model._meta.fields)
    assert shown.date_hierarchy or not dated or model._meta.app_label in {"auth", "django_q"}


Measured = tuple[int, list[str]]
"""How many rows the list of a model shows, and the queries that it needs."""


def measure_lists(root: Client) -> dict[Any, Measured]:
    """Open the list of every model; return its rows and queries."""
    found = dict[Any, Measured]()
    for model in MODELS:
        with CaptureQueriesContext(connection) as queries:
            shown = root.get(address(model, "changelist"))
        assert shown.status_code == 200, model
        found[model] = len(shown.context["cl"].result_list), [query["sql"][:200] for query in queries]
    return found


@pytest.fixture(scope="module")
def lists_of_one_and_many(
    django_db_setup: None, django_db_blocker: Any
) -> tuple[dict[Any, Measured], dict[Any, Measured]]:
    """Return the measurements with one row of every model, and with many."""
    with django_db_blocker.unblock(), of_the_test():
        root = browser(superuser())
        make_set("0")
        measure_lists(root)  # fills the content type cache
        one = measure_lists(root)
        for number in range(1, MANY):
            make_set(str(number))
        many = measure_lists(root)
        transaction.set_rollback(True)
    return one, many


@pytest.mark.parametrize("model", MODELS, ids=ids(MODELS))
def test_more_rows_cost_no_more_queries_than_one(
    lists_of_one_and_many: tuple[dict[Any, Measured], dict[Any, Measured]], model: Any
) -> None:
    (_, before), (rows, after) = (measured[model] for measured in lists_of_one_and_many)
    assert rows >= MANY
    assert len(after) <= len(before), after


@pytest.mark.parametrize("model", MODELS, ids=ids(MODELS))
def test_no_page_shows_a_secret_or_violates_the_policy(root: Client, model: Any) -> None:
    make_set("0")
    hidden = [SECRET, ApiToken.objects.get().secret_hash, LoginLink.objects.get().secret_hash]
    for page in pages_of(model):
        answer = root.get(page)
        assert answer.status_code in {200, 302, 403}, page
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert not foreign_inline(answer.text), page
        assert not OUTSIDE.findall(answer.text), page
        assert not [word for word in hidden if word in answer.text], page


def test_plain_text_token_model_has_no_page(root: Client) -> None:
    assert root.get("/admin/authtoken/tokenproxy/").status_code == 404


def test_index_lists_the_models(root: Client) -> None:
    text = root.get("/admin/").text
    assert not foreign_inline(text)
    for words in ("Task sessions", "Repositories", "Continuity receipts", "Agent profiles"):
        assert words in text


def test_index_forms_plurals_as_english_does(root: Client) -> None:
    html = root.get("/admin/").text
    assert not re.findall(r">(\w[\w ]*(?:[^aeiou]ys|[^e]eds|runnings))<", html)
    assert "Executions" in html


@pytest.mark.parametrize("model", ["sessionevent", "intent", "prompt", "message", "turn", "continuityreceipt"])
def test_session_rows_are_found_by_id_with_or_without_dashes(root: Client, model: str) -> None:
    session, _ = make_set("0"), make_set("1")
    url = reverse(f"admin:sessions_app_{model}_changelist")
    for query in (f"?q={session.id}", f"?q={session.id.hex}", f"?session__id__exact={session.id}"):
        rows = root.get(url + query).context["cl"].result_list
        assert {row.session_id for row in rows} == {session.id}
