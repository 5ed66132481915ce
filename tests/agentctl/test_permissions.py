"""A permission stays open until it is answered or cancelled, or its agent exits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.agentctl.fakes import OPTIONS
from tests.agentctl.journals import held_syncs
from tests.agentctl.running import Running, agentctl, holds
from tests.waiting import eventually_async


async def test_answer_reaches_the_agent_once(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()

    answers = await asyncio.gather(*(started.post(f"/permissions/{permission}", option_id="yes") for _ in range(4)))

    assert answers == [(200, {"option_id": "yes"})] * 4
    assert (await started.line("message.agent"))["text"] == "chosen: yes"
    assert started.kinds().count("permission.resolved") == 1
    requested = await started.line("permission.requested")
    assert holds(requested, {"permission_id": permission, "message_id": "m1", "options": OPTIONS})
    assert (await started.get("/status"))["pending_permissions"] == []


async def test_agent_gets_an_answer_after_it_is_on_disk(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()
    await started.sidecar.journal.flush()
    with held_syncs(started.sidecar.journal) as release:
        answering = [asyncio.create_task(started.post(f"/permissions/{permission}", option_id="yes")) for _ in range(2)]
        await eventually_async(lambda: "permission.resolved" in started.kinds())

        await started.reaches("working")
        assert not any(answer.done() for answer in answering)
        assert "message.agent" not in started.kinds()

        release.set()
        assert await asyncio.gather(*answering) == [(200, {"option_id": "yes"})] * 2
        assert (await started.line("message.agent"))["text"] == "chosen: yes"


async def test_answer_that_is_being_written_is_neither_cancelled_nor_timed_out(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()
    await started.sidecar.journal.flush()
    with held_syncs(started.sidecar.journal) as release:
        answering = asyncio.create_task(started.post(f"/permissions/{permission}", option_id="yes"))
        await eventually_async(lambda: "permission.resolved" in started.kinds())

        status, body = await started.post(f"/permissions/{permission}", option_id=None)
        assert (status, body["code"], body["details"]) == (409, "already_answered", {"option_id": "yes"})
        assert await started.post("/cancel", message_id="m1") == (200, {"cancelled": True})

        release.set()
        assert await answering == (200, {"option_id": "yes"})
        assert (await started.line("message.agent"))["text"] == "chosen: yes"
        assert "permission.cancelled" not in started.kinds()


async def test_timeout_is_acknowledged_after_it_is_on_disk(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()
    await started.sidecar.journal.flush()
    with held_syncs(started.sidecar.journal) as release:
        expiring = asyncio.create_task(started.post(f"/permissions/{permission}", option_id=None))
        await eventually_async(lambda: "permission.cancelled" in started.kinds())

        await started.get("/status")
        assert not expiring.done()

        release.set()
        assert await expiring == (200, {"option_id": None})


async def test_first_answer_stands_after_a_restart(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as first:
        await first.start()
        await first.prompt("ask")
        permission = await first.pending_permission()
        both = (first.post(f"/permissions/{permission}", option_id=option) for option in ("no", "yes"))
        assert sorted(status for status, _ in await asyncio.gather(*both)) == [200, 409]
        chosen = (await first.line("permission.resolved"))["option_id"]

    async with agentctl(tmp_path) as second:
        other = {"yes": "no", "no": "yes"}[chosen]
        assert await second.post(f"/permissions/{permission}", option_id=chosen) == (200, {"option_id": chosen})
        status, body = await second.post(f"/permissions/{permission}", option_id=other)
        assert (status, body["code"], body["details"]) == (409, "already_answered", {"option_id": chosen})


async def test_unknown_permissions_and_options_are_refused(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()

    assert (await started.post("/permissions/none-such", option_id="yes"))[0] == 404
    assert (await started.post(f"/permissions/{permission}", option_id="maybe"))[0] == 400
    assert (await started.post(f"/permissions/{permission}"))[0] == 400
    assert await started.pending_permission() == permission


async def test_permission_timeout_is_reported_to_the_agent_once_across_restarts(tmp_path: Path) -> None:
    async with agentctl(tmp_path) as first:
        await first.start()
        await first.prompt("ask")
        permission = await first.pending_permission()
        for _ in range(2):
            assert await first.post(f"/permissions/{permission}", option_id=None) == (200, {"option_id": None})
        cancelled = await first.line("permission.cancelled")
        assert holds(cancelled, {"permission_id": permission, "reason": "timeout"})
        assert first.kinds().count("permission.cancelled") == 1

    async with agentctl(tmp_path) as second:
        assert await second.post(f"/permissions/{permission}", option_id=None) == (200, {"option_id": None})
        status, body = await second.post(f"/permissions/{permission}", option_id="yes")
        assert (status, body["code"]) == (409, "already_answered")
        assert (await second.post("/permissions/none-such", option_id=None))[0] == 404


async def test_given_answer_is_not_revoked_by_a_timeout(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()
    await started.post(f"/permissions/{permission}", option_id="yes")
    status, body = await started.post(f"/permissions/{permission}", option_id=None)
    assert (status, body["code"], body["details"]) == (409, "already_answered", {"option_id": "yes"})


async def test_cancelled_turn_cancels_its_permission(started: Running) -> None:
    await started.prompt("ask")
    permission = await started.pending_permission()

    await started.post("/cancel", message_id="m1")

    await started.line("turn.cancelled")
    cancelled = await started.line("permission.cancelled")
    assert holds(cancelled, {"permission_id": permission, "reason": "turn_cancelled"})
    assert (await started.post(f"/permissions/{permission}", option_id="yes"))[0] == 404


async def test_exit_of_the_agent_cancels_its_permission(started: Running) -> None:
    await started.prompt("ask")
    await started.pending_permission()

    started.agent.driver.die(9)

    assert (await started.line("permission.cancelled"))["reason"] == "agent_gone"
    assert started.kinds()[-2:] == ["permission.cancelled", "agent.exited"]


async def test_stop_is_recorded_as_the_reason(started: Running) -> None:
    await started.prompt("ask")
    await started.pending_permission()

    await started.post("/agent/stop", grace=0)

    assert (await started.line("permission.cancelled"))["reason"] == "stopped"
    assert holds(await started.line("agent.exited"), {"expected": True, "message_id": "m1", "exit_code": -15})


async def test_automatic_approval_takes_the_first_allowing_option_and_records_it(running: Running) -> None:
    await running.start(permission_mode="auto_approve")
    await running.prompt("ask")

    assert (await running.line("message.agent"))["text"] == "chosen: yes"
    assert [kind for kind in running.kinds() if kind.startswith("permission.")] == [
        "permission.requested",
        "permission.resolved",
    ]
