"""A question to a person stays open until it is answered or cancelled; its answer reaches the agent once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.agentctl.fakes import FORM, LINK
from tests.agentctl.running import Running, agentctl, holds

SECRET = {"name": "s3cr8"}


async def test_answer_reaches_the_agent_once_and_is_stored_nowhere(started: Running) -> None:
    await started.prompt("form")
    question = await started.pending_permission()
    path = f"/permissions/{question}"

    answers = await asyncio.gather(*(started.post(path, option_id="accept", content=SECRET) for _ in range(4)))

    assert answers == [(200, {"option_id": "accept"})] * 4
    assert (await started.line("message.agent"))["text"] == f"accept: {SECRET}"
    resolved = await started.line("permission.resolved")
    assert holds(resolved, {"permission_id": question, "option_id": "accept"})
    assert started.kinds().count("permission.resolved") == 1
    requested = await started.line("permission.requested")
    assert holds(requested, {"message_id": "m1", "question": FORM})
    assert [option["option_id"] for option in requested["options"]] == ["accept", "decline", "cancel"]
    kept = [path.read_bytes() for path in started.state_dir.rglob("*") if path.is_file()]
    occurrences = sum(text.count(SECRET["name"].encode()) for text in kept)
    assert occurrences == 1, "only the agent's own text contains it"


async def test_invalid_answer_is_refused_with_an_error_per_field(started: Running) -> None:
    await started.prompt("form")
    question = await started.pending_permission()

    status, body = await started.post(f"/permissions/{question}", option_id="accept", content={"name": "too long"})

    assert (status, body["details"]["fields"]["name"]["code"]) == (400, "too_long")
    assert (await started.post(f"/permissions/{question}", option_id="accept"))[0] == 400
    assert (await started.post(f"/permissions/{question}", option_id="accept", content=["x"]))[0] == 400
    assert await started.pending_permission() == question


async def test_declined_question_needs_no_content(started: Running) -> None:
    await started.prompt("form")
    question = await started.pending_permission()

    await started.post(f"/permissions/{question}", option_id="decline")

    assert (await started.line("message.agent"))["text"] == "decline: {}"


async def test_question_of_a_cancelled_turn_is_cancelled(started: Running) -> None:
    await started.prompt("form")
    question = await started.pending_permission()

    await started.post("/cancel", message_id="m1")

    cancelled = await started.line("permission.cancelled")
    assert holds(cancelled, {"permission_id": question, "reason": "turn_cancelled"})
    assert (await started.post(f"/permissions/{question}", option_id="accept", content={"name": "x"}))[0] == 404


async def test_question_is_never_answered_by_automatic_approval(running: Running) -> None:
    await running.start(permission_mode="auto_approve")
    await running.prompt("form")

    assert await running.pending_permission()


async def test_link_question_closes_when_the_agent_reports_completion(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as running:
        await running.start()
        await running.prompt("link")
        question = await running.pending_permission()
        host = running.agent.driver.host

        assert [host.complete_question("other"), host.complete_question("e1"), host.complete_question("e1")] == [
            False,
            True,
            False,
        ]

        assert (await running.line("message.agent"))["text"] == "accept: {}"
        resolved = await running.line("permission.resolved")
        assert holds(resolved, {"permission_id": question, "option_id": "accept", "reason": "completed"})
        assert holds(await running.line("permission.requested"), {"question": LINK})
        assert await running.post(f"/permissions/{question}", option_id="accept") == (200, {"option_id": "accept"})
        assert (await running.post(f"/permissions/{question}", option_id="decline"))[0] == 409
