"""The admin in a real browser: its scripts work under the content security policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect

from sessions_app.models import SweepRequest, TaskSession
from tests.admin.everything import make_set, superuser
from tests.pages.browsers import COOKIE, Visit, navigating
from tests.pages.fixtures import browser

__all__ = ["browser"]

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def visit(browser: Browser, live_server: Any) -> Iterator[Visit]:
    client = Client()
    client.force_login(superuser())
    made = Visit(browser, live_server.url, client.cookies[COOKIE].value)
    yield made
    made.context.close()


def test_selected_sessions_are_swept_through_the_page_scripts(visit: Visit) -> None:
    sessions = [make_set(name) for name in "ab"]
    SweepRequest.objects.all().delete()
    page = visit.open("/admin/sessions_app/tasksession/")
    page.locator("#action-toggle").click()
    expect(page.locator(".action-counter")).to_have_text("2 of 2 selected")
    page.locator("select[name=action]").select_option(label="Sweep selected sessions now")
    with navigating(page):
        page.locator("button[name=index]").click()
    expect(page.locator(".messagelist")).to_contain_text("of 2 sessions")
    assert set(SweepRequest.objects.get().sessions) == {str(one.id) for one in sessions}
    assert visit.complaints == []


def test_forms_with_scripts_violate_no_content_security_policy(visit: Visit) -> None:
    session: TaskSession = make_set("a")
    team = session.task.team
    page = visit.open(f"/admin/auth/group/{team.pk}/change/")
    page.locator("#User_groups-group .add-row a").click()
    expect(page.locator(".select2").nth(1)).to_be_visible()
    for path in (
        "",
        f"executors_app/agentprofile/{session.agent_profile_id}/change/",
        f"auth/user/{team.user_set.get().pk}/",
    ):
        visit.open(f"/admin/{path}")
        expect(page.locator("#header")).to_be_visible()
        expect(page.locator("button.theme-toggle")).to_have_count(0)  # the theme is a setting of the user
    assert visit.complaints == []
