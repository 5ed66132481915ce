"""Every page of the admin opens, needs a constant number of queries, and shows no secret."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from executors_app.models import AgentProfile, Executor, SecretKeyCheck
from kandev.admin_sections import SECTIONS
from sessions_app.accounts.models import ApiToken, LoginLink
from sessions_app.board.admin import RELATED_LISTS, TASK_LISTS
from sessions_app.kernel.admin import session_page
from sessions_app.models import ContinuityReceipt, Host, Task, TaskSession, TeamPolicy, Turn, WaitKey
from sessions_app.workflows.models import WorkflowRun
from tests.admin.everything import SECRET, browser, make_set, staff, superuser
from tests.pages.inline import foreign_inline
from tests.transaction_guard import of_the_test

pytestmark = pytest.mark.any_database

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
OURS = [model for model in apps.get_models() if model.__module__.startswith(("sessions_app.", "executors_app."))]
OUTSIDE = re.compile(r"(?:src|href|action|formaction)=\"(?:[a-z]+:)?//", re.IGNORECASE)
MANY = 4
SINGLE = {SecretKeyCheck}
"""Models of which there is one row at most."""
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
    assert rows >= (1 if model in SINGLE else MANY)
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


def index_of(root: Client) -> dict[str, list[str]]:
    """Return the names of the models on the index, by section."""
    return {
        section["name"]: [m["name"] for m in section["models"]] for section in root.get("/admin/").context["app_list"]
    }


def test_every_model_is_in_exactly_one_section() -> None:
    listed = [model for section in SECTIONS for model in section.models]
    assert sorted(listed) == sorted(model._meta.label_lower for model in MODELS)


def test_index_groups_the_models_as_staff_look_for_them(root: Client) -> None:
    index = index_of(root)
    assert list(index) == [section.name for section in SECTIONS]
    assert index["Tasks and sessions"][:2] == ["Tasks", "Sessions"]
    assert index["Agents and executors"][:3] == ["Agent profiles", "Executors", "Executions"]
    assert "Orphaned processes" in index["Hosts"]
    assert "Teams" in index["People and teams"]
    assert not foreign_inline(root.get("/admin/").text)


def test_section_has_a_page_and_is_in_the_breadcrumbs_of_its_models(root: Client) -> None:
    session = make_set("0")
    hosts = root.get("/admin/section/hosts/")
    assert [section["name"] for section in hosts.context["app_list"]] == ["Hosts"]
    assert root.get("/admin/section/nothing/").status_code == 404
    for page in ("changelist", "change", "history", "delete"):
        args = [] if page == "changelist" else [session.executor_id]
        text = root.get(address(Executor, page, *args)).text
        assert '<a href="/admin/section/agents/">Agents and executors</a>' in text, page


def test_staff_see_only_the_sections_that_they_may_open(db: None) -> None:
    index = index_of(browser(staff()))
    assert "Users" not in index["People and teams"]


def test_session_links_to_what_belongs_to_it(root: Client) -> None:
    session, _ = make_set("0"), make_set("1")
    text = root.get(address(TaskSession, "change", session.pk)).text
    links = re.findall(r'"(/admin/[a-z_/]+/\?session__id__exact=[0-9a-f-]+)"', text)
    assert len(links) == len(RELATED_LISTS)
    for link in links:
        rows = root.get(link).context["cl"].result_list
        assert {row.session_id for row in rows} <= {session.id}, link
        assert rows, link


def test_task_links_to_what_belongs_to_it(root: Client) -> None:
    session, _ = make_set("0"), make_set("1")
    text = root.get(address(Task, "change", session.task_id)).text
    links = re.findall(r'"(/admin/[a-z_/]+/\?task__id__exact=[0-9a-f-]+)"', text)
    assert len(links) == len(TASK_LISTS)
    for link in links:
        assert len(root.get(link).context["cl"].result_list) == 1, link


def join(team: Group) -> None:
    User.objects.get(username="root").groups.add(team)


def page_of(model: Any, session: TaskSession) -> str:
    """Return the page of a session, or of its task."""
    if model is TaskSession:
        return session_page(session)
    return reverse("task", args=[session.task_id])


SITE_LINK = re.compile(r'href="([^"]*)" class="viewsitelink"')


WITH_A_PAGE = {Task, TaskSession, Turn, ContinuityReceipt, WaitKey, WorkflowRun, Host, Executor, AgentProfile}


def test_page_of_the_site_exists_wherever_a_row_links_to_it(root: Client) -> None:
    join(make_set("0").task.team)
    for model in MODELS:
        key = quote(model._default_manager.values_list("pk", flat=True)[0])
        links = SITE_LINK.findall(root.get(address(model, "change", key)).text)
        assert links or model not in WITH_A_PAGE, model
        assert [root.get(link).status_code for link in links] == [200] * len(links), model


@pytest.mark.parametrize("model", [Task, TaskSession])
def test_lists_of_tasks_and_sessions_link_to_the_pages_of_own_teams(root: Client, model: Any) -> None:
    own, other = make_set("0"), make_set("1")
    join(own.task.team)
    text = root.get(address(model, "changelist")).text
    assert f'href="{page_of(model, own)}">Open</a>' in text
    assert page_of(model, other) not in text
    assert not SITE_LINK.findall(root.get(address(TaskSession, "change", other.pk)).text)


@pytest.mark.parametrize("model", MODELS, ids=ids(MODELS))
def test_list_is_filtered_by_state_and_error_code(model: Any) -> None:
    shown = admin.site._registry[model]
    filters = {each if isinstance(each, str) else each[0] for each in cast("tuple[Any, ...]", shown.list_filter)}
    states = {field.name for field in model._meta.concrete_fields if type(field).__name__ == "CharField"}
    assert states & {"state", "status", "error_code", "policy", "reason"} <= filters


def test_policies_and_states_are_shown_in_the_words_of_the_pages(root: Client) -> None:
    session = make_set("0")
    TaskSession.objects.update(policy="on_open", state="WAITING_FOR_INPUT")
    TeamPolicy.objects.update(policy="manual")
    for page in (address(TaskSession, "changelist"), address(TaskSession, "change", session.pk)):
        text = root.get(page).text
        assert "When someone opens the session" in text
        assert "WAITING_FOR_INPUT<" not in text
    assert "Only manually" in root.get(address(TeamPolicy, "changelist")).text


def test_times_have_the_format_of_the_pages(root: Client) -> None:
    session = make_set("0")
    text = root.get(address(TaskSession, "change", session.pk)).text
    assert re.search(r">\d{4}-\d\d-\d\d \d\d:\d\d UTC<", text)
    assert "a.m." not in text and "p.m." not in text


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
