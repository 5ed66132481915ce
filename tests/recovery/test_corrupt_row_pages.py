"""A damaged session is reported on every page and in its status, and lists still render."""

from __future__ import annotations

import pytest
from django.test import Client
from rest_framework.test import APIClient

from sessions_app.kernel.services.errors import DamagedRow
from sessions_app.models import Prompt
from sessions_app.prompts import services as prompts
from sessions_app.sessions.services import intents
from sessions_app.sessions.services.status import session_status
from tests.supervisor.corrupt_rows import EVERY_DAMAGE, Damage, pair
from tests.supervisor.recording_runtime import RecordingRuntime
from tests.supervisor.rows import fresh, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@EVERY_DAMAGE
def test_damaged_session_reports_its_damage_and_rejects_requests(damage: Damage, runtime: RecordingRuntime) -> None:
    ill, healthy = pair(runtime, damage)
    status = session_status(fresh(ill))
    assert status["error_code"] == status["resume_reason"] == "damaged_row"
    assert damage.message in status["error_message"]
    assert (status["is_resumable"], status["needs_resume"]) == (False, False)
    assert status.keys() == session_status(fresh(healthy)).keys()
    for ask in (
        lambda: prompts.queue_prompt(ill.id, "p2", "do it", make_user()),
        lambda: intents.request_resume(ill.id, make_user()),
    ):
        with pytest.raises(DamagedRow):
            ask()
    assert Prompt.objects.filter(session=ill).count() == 1


@EVERY_DAMAGE
def test_pages_and_lists_with_a_damaged_session_still_render(damage: Damage, runtime: RecordingRuntime) -> None:
    ill, healthy = pair(runtime, damage)
    user = make_user()
    browser, api = Client(), APIClient()
    browser.force_login(user)
    api.force_authenticate(user)
    for session in (ill, healthy):
        page = f"/tasks/{session.task_id}/sessions/{session.id}/"
        for address in ("/", f"/tasks/{session.task_id}/", page, f"{page}live/", "/executors/"):
            assert browser.get(address).status_code == 200, address
        for tail in ("", "status/", "prompts/", "events/", "messages/", "receipts/", "runs/", "permissions/"):
            assert api.get(f"/api/v1{page}{tail}").status_code == 200, tail
    shown = browser.get(f"/tasks/{ill.task_id}/sessions/{ill.id}/").content.decode()
    assert "An administrator needs to repair it" in shown
    answer = api.post(f"/api/v1/tasks/{ill.task_id}/sessions/{ill.id}/resume/", {}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "damaged_row")
