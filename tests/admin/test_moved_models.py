"""Old admin addresses of models that moved to other apps."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.test import Client
from django.urls import reverse

from sessions_app.accounts.models import TeamRole
from sessions_app.moved_models import MOVED_MODELS
from tests.admin.everything import browser, make_set, superuser

MOVED = [(label, model) for label, models in MOVED_MODELS.items() for model in models]


def test_every_model_of_the_new_apps_was_moved() -> None:
    for label, models in MOVED_MODELS.items():
        assert sorted(apps.get_app_config(label).models) == sorted(models)


@pytest.mark.django_db
@pytest.mark.parametrize(("label", "model"), MOVED)
def test_old_admin_addresses_redirect_with_their_query(label: str, model: str) -> None:
    answer = browser(superuser()).get(f"/admin/sessions_app/{model}/?q=a%20b&p=1")
    assert (answer.status_code, answer.headers["Location"]) == (301, f"/admin/{label}/{model}/?q=a%20b&p=1")


@pytest.mark.django_db
def test_old_address_of_a_row_leads_to_that_row() -> None:
    make_set("first")
    role = TeamRole.objects.all()[0]
    url = reverse("admin:accounts_teamrole_change", args=[role.pk])
    answer = browser(superuser()).get(url.replace("accounts", "sessions_app"), follow=True)
    assert (answer.redirect_chain, answer.status_code) == ([(url, 301)], 200)


@pytest.mark.django_db
def test_quoted_keys_of_old_addresses_stay_quoted() -> None:
    answer = browser(superuser()).get("/admin/sessions_app/attemptcount/a_2Fb_5Fc/change/")
    assert answer.headers["Location"] == "/admin/accounts/attemptcount/a_2Fb_5Fc/change/"


@pytest.mark.django_db
def test_post_to_an_old_address_is_redirected() -> None:
    answer = browser(superuser()).post("/admin/sessions_app/webhook/", {"action": "switch_off"})
    assert (answer.status_code, answer.headers["Location"]) == (308, "/admin/notifications/webhook/")


@pytest.mark.django_db
def test_old_address_requires_a_login() -> None:
    answer = Client().get("/admin/sessions_app/workflow/")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/login/?next=/admin/sessions_app/workflow/")
