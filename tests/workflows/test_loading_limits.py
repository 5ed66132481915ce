"""Limits on loading texts for a user's requests: rate and concurrency, without losing a typed text."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection, transaction
from django.test import Client

from sessions_app.accounts.rate_limits import RequestThrottle
from sessions_app.kernel.services.errors import ChecksUnavailable, Throttled
from sessions_app.workflows.loader import client as apart
from sessions_app.workflows.models import Workflow
from sessions_app.workflows.services import loading, trigger_settings, workflows
from tests.supervisor.rows import make_user
from tests.workflows.pages.workflow_rows import PLAIN
from tests.workflows.run_world import World, place, team
from tests.workflows.test_loading_process import EXPENSIVE, SLOW, SLOW_FILES
from tests.workflows.workflow_builder import node, workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow each user one check or change."""
    monkeypatch.setattr(loading, "CHECK_THROTTLE", RequestThrottle("one-check", 1, 60))


def text(label: str) -> str:
    """Return a text that no test loaded before, so that it is not cached."""
    return workflow([node("one", "constant", value=1, label=label)])


def client() -> Client:
    found = Client()
    found.force_login(make_user())
    return found


def test_user_loads_texts_in_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_WAIT", 0)
    ada, bea = make_user("ada"), make_user("bea")
    with loading.user_load_slot(ada):
        with pytest.raises(Throttled), loading.user_load_slot(ada, counted=False):
            pass
        with loading.user_load_slot(bea):
            pass
    with loading.user_load_slot(ada):
        pass


def test_request_waits_for_the_previous_one() -> None:
    user, order = make_user(), []
    inside, done = threading.Event(), threading.Event()

    def first() -> None:
        with loading.user_load_slot(user):
            inside.set()
            done.wait(60)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(60)
    done.set()
    with loading.user_load_slot(user):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.usefixtures("one_check")
def test_pages_and_api_share_one_limit() -> None:
    browser = client()
    request = {"text": PLAIN}
    assert browser.post("/workflows/check/", {"do": "check", **request}).status_code == 200
    refused = browser.post("/api/v1/workflows/check/", request, "application/json")
    assert (refused.status_code, refused.json()["code"], refused["Retry-After"]) == (429, "throttled", "60")
    assert browser.post("/workflows/check/", {"do": "check", **request}).status_code == 429


@pytest.mark.usefixtures("one_check")
@pytest.mark.parametrize("button", ["save", "check", "open", "apply"])
def test_throttled_page_keeps_the_typed_text(button: str) -> None:
    browser = client()
    assert browser.post("/workflows/check/", {"do": "check", "text": PLAIN}).status_code == 200
    typed = {"do": button, "name": "Mine", "text": f"{PLAIN}# typed", "team": team().pk, "node": "told"}
    answer = browser.post("/workflows/new/", typed)
    assert answer.status_code == 429
    assert "# typed" in answer.content.decode()
    assert "Not checked" in answer.content.decode()
    assert not Workflow.objects.exists()


def test_page_is_shown_while_another_text_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_WAIT", 0)
    user, browser = make_user(), client()
    row, _ = workflows.save_workflow(user, {"team": team(), "text": PLAIN, "name": "it"})
    with loading.user_load_slot(user):
        answer = browser.get(f"/workflows/{row.id}/")
    assert answer.status_code == 429
    assert "name: Plain" in answer.content.decode()


def test_text_that_is_too_expensive_is_saved_as_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(apart.LIMITS, "cpu_seconds", 1)
    values = {"team": team(), "text": EXPENSIVE, "files": SLOW_FILES, "name": "slow"}
    row, problems = workflows.save_workflow(make_user(), values)
    assert (row.text, row.is_valid, [one.code for one in problems]) == (EXPENSIVE, False, ["too_expensive"])


def test_busy_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    row, _ = workflows.save_workflow(make_user(), {"team": team(), "text": text("before"), "name": "it"})
    monkeypatch.setitem(apart.LIMITS, "seconds", 0.001)
    with pytest.raises(ChecksUnavailable):
        workflows.save_workflow(make_user(), {"text": f"{SLOW}  "}, row)
    row.refresh_from_db()
    assert (row.text, row.is_valid, row.revision) == (text("before"), True, 1)


def test_workflow_is_not_loaded_in_a_transaction() -> None:
    loading._load_cached.cache_clear()
    with transaction.atomic(), pytest.raises(ChecksUnavailable):
        loading.load_text(PLAIN, {})
    loaded = loading.load_text(PLAIN, {})
    with transaction.atomic():
        assert loading.load_text(PLAIN, {}) is loaded


def test_run_whose_text_cannot_be_loaded_yet_stays_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(text("run"))
    loading._load_cached.cache_clear()
    with monkeypatch.context() as busy:
        busy.setitem(apart.LIMITS, "seconds", 0.001)
        assert world.drive().state == "queued"
    world.drivers.clear()  # another supervisor starts without a delay
    assert world.run_to_end().state == "succeeded"


class TestConfirming:
    """Showing or confirming triggers loads a text, and counts toward the same limits."""

    @pytest.fixture
    def paused(self) -> Workflow:
        clock = {"triggerType": "cron", "cron": "0 * * * *"}
        before, after = (workflow([node("clock", "trigger", label=label, **clock)]) for label in ("before", "after"))
        user, kept = make_user(), {"team": team(), "name": "it", "executor": place(), "triggers_enabled": True}
        row, _ = workflows.save_workflow(user, {**kept, "text": before})
        row, _ = workflows.save_workflow(user, {"text": after}, row)
        assert row.triggers_paused
        return row

    def test_counts_as_the_one_request_of_its_user(self, paused: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "MAX_WAIT", 0)
        browser, user = client(), make_user()
        address = f"/api/v1/workflows/{paused.id}/triggers/"
        seen = browser.get(address).json()["fingerprint"]
        confirmed = {"fingerprint": seen}
        with loading.user_load_slot(user):
            assert browser.get(address).status_code == 429
            assert browser.post(f"{address}confirm/", confirmed, "application/json").status_code == 429
            assert browser.get(f"/workflows/{paused.id}/").status_code == 429
            browser.post(f"/workflows/{paused.id}/triggers/", confirmed)
        paused.refresh_from_db()
        assert not paused.triggers_enabled
        browser.post(f"/workflows/{paused.id}/triggers/", confirmed)
        paused.refresh_from_db()
        assert paused.triggers_enabled

    def test_loads_the_text_before_a_row_is_locked(self, paused: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = trigger_settings.triggers_document(make_user(), paused)["fingerprint"]
        loading._load_cached.cache_clear()
        depths: list[int] = []
        load = apart.load_isolated
        outside = len(connection.savepoint_ids)

        def watched(*request: Any) -> Any:
            depths.append(len(connection.savepoint_ids) - outside)
            return load(*request)

        monkeypatch.setattr(apart, "load_isolated", watched)
        trigger_settings.confirm_triggers(make_user(), paused, seen)
        assert depths == [0]

    def test_shows_the_page_when_the_text_cannot_be_loaded(
        self, paused: Workflow, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        browser = client()
        monkeypatch.setattr(apart, "_request", _busy)
        loading._load_cached.cache_clear()
        loading._check_cached.cache_clear()
        answer = browser.get(f"/workflows/{paused.id}/")
        assert answer.status_code == 503
        assert "clock" in answer.content.decode()


def _busy(*request: Any) -> None:
    raise apart.LoadingUnavailable
