"""A change of a setting reaches the agent once, and its outcome is in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.drivers import DeletionResult, SettingRefused
from executors_app.agentctl.drivers.json_rpc import AgentGone
from tests.agentctl.running import Running, agentctl
from tests.waiting import eventually_async

CHANGE = {"change_id": "c1", "setting": "mode", "value": "plan"}


def changes_of(running: Running, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the changes sent to the agent, which refuses "no" and exits at "gone"."""
    outcomes: list[Any] = []
    answers: dict[Any, Exception] = {"no": SettingRefused("setting_refused", "No."), "gone": AgentGone()}

    async def change_setting(setting: str, value: Any, sent: Callable[[], Any]) -> None:
        sent()
        outcomes.append((setting, value))
        if value in answers:
            raise answers[value]

    monkeypatch.setattr(running.sidecar.agent.driver(), "change_setting", change_setting, raising=False)
    return outcomes


@pytest.fixture
def changes(started: Running, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the changes sent to the agent."""
    return changes_of(started, monkeypatch)


async def test_repeated_change_reaches_the_agent_once(started: Running, changes: list[Any]) -> None:
    answers = await asyncio.gather(*(started.post("/settings", **CHANGE) for _ in range(4)))
    assert [status for status, _ in answers] == [202] * 4
    await started.line("setting.applied")
    assert (await started.post("/settings", **CHANGE))[1] == {"accepted": True, "duplicate": True}
    assert changes == [("mode", "plan")]
    assert started.kinds().count("setting.applied") == 1


async def test_refusal_is_in_the_journal(started: Running, changes: list[Any]) -> None:
    await started.post("/settings", **{**CHANGE, "value": "no"})
    line = await started.line("setting.refused")
    assert (line["change_id"], line["code"], line["reason"]) == ("c1", "setting_refused", "No.")


async def test_change_whose_agent_ends_has_no_outcome_and_can_be_sent_again(
    started: Running, changes: list[Any]
) -> None:
    for _ in range(2):
        assert (await started.post("/settings", **{**CHANGE, "value": "gone"}))[0] == 202
    assert changes == [("mode", "gone")] * 2
    assert not {"setting.applied", "setting.refused"} & set(started.kinds())


async def test_completed_change_is_not_repeated_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentctl(tmp_path) as first:
        await first.start()
        changes = changes_of(first, monkeypatch)
        await first.post("/settings", **CHANGE)
        await first.line("setting.applied")
        # Stored after the line, so that a crash in between repeats the change instead of losing it.
        await eventually_async(lambda: first.sidecar.store.get("setting", "c1") is True)
        assert changes == [("mode", "plan")]
    async with agentctl(tmp_path) as second:
        await second.start("launch-2")
        changes = changes_of(second, monkeypatch)
        assert (await second.post("/settings", **CHANGE))[1] == {"accepted": True, "duplicate": True}
        assert changes == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**CHANGE, "value": 7}, 400, "validation_error"),
        ({**CHANGE, "setting": "x" * 300}, 400, "validation_error"),
        ({"setting": "mode", "value": "plan"}, 400, "validation_error"),
        (CHANGE, 409, "settings_unsupported"),
    ],
)
async def test_invalid_change_is_refused(started: Running, body: dict[str, Any], status: int, code: str) -> None:
    answer = await started.post("/settings", **body)
    assert (answer[0], answer[1]["code"]) == (status, code)


async def test_change_without_an_agent_is_refused(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running:
        status, answer = await running.post("/settings", **CHANGE)
    assert (status, answer["code"]) == (409, "not_running")


@pytest.mark.parametrize("reason", ["", "it is locked"])
async def test_stop_deletes_the_transcript_once_if_asked(
    started: Running, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    requests: list[str] = []

    async def delete_conversation() -> DeletionResult:
        requests.append("delete")
        return DeletionResult(reason)

    monkeypatch.setattr(started.sidecar.agent.driver(), "delete_conversation", delete_conversation, raising=False)
    for _ in range(2):
        _, answer = await started.post("/agent/stop", intent_id="i1", delete_transcript=True)
        assert answer["transcript"] == {"deleted": not reason, "confirmed": False, "reason": reason}
    assert requests == ["delete"]


async def test_stop_reports_an_agent_that_cannot_delete_transcripts(started: Running) -> None:
    _, answer = await started.post("/agent/stop", intent_id="i1", delete_transcript=True)
    assert answer["transcript"]["deleted"] is False
    assert "transcript" not in (await started.post("/agent/stop", intent_id="i2"))[1]
