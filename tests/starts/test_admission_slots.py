"""A start that waits long for its agent keeps no other session from starting."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from sessions_app.models import Intent, IntentKind
from sessions_app.starts import admission
from sessions_app.starts.admission import StartGate, StartSlots, start_allowance
from tests.supervisor.rows import MINE, running_session
from tests.waiting import PATIENCE, eventually_async

HANGING, QUICK, THIRD = (uuid.uuid4() for _ in range(3))


async def any_executor() -> str:
    return "executor"


async def test_hanging_start_gives_its_place_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "BUSY_SECONDS", 0.05)
    slots, release, begun = StartSlots(), asyncio.Event(), list[uuid.UUID]()
    gate = StartGate(1, slots)

    async def start(session_id: uuid.UUID) -> None:
        async with gate.place(session_id, any_executor):
            begun.append(session_id)
            if session_id == HANGING:
                await release.wait()

    hanging = asyncio.create_task(start(HANGING))
    await eventually_async(lambda: begun == [HANGING])
    async with asyncio.timeout(30):
        await start(QUICK)
    assert (begun, slots.waiting) == ([HANGING, QUICK], {HANGING})
    release.set()
    await hanging
    assert slots.waiting == set()


async def test_place_is_given_up_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "BUSY_SECONDS", 0.05)
    slots = StartSlots()
    gate = StartGate(1, slots)
    async with gate.place(HANGING, any_executor):
        await eventually_async(lambda: slots.waiting == {HANGING})
    monkeypatch.setattr(admission, "BUSY_SECONDS", PATIENCE)
    second = gate.place(QUICK, any_executor)
    await second.__aenter__()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), gate.place(THIRD, any_executor):
            pytest.fail("one place was given twice")
    await second.__aexit__(None, None, None)


async def test_executors_whose_starts_wait_take_turns() -> None:
    gate, begun, ends = StartGate(1, StartSlots()), list[str](), asyncio.Event()

    async def start(executor: str) -> None:
        async def load_executor() -> str:
            return executor

        async with gate.place(uuid.uuid4(), load_executor):
            begun.append(executor)
            await ends.wait()

    starts = [asyncio.create_task(start(executor)) for executor in ("silent",) * 20 + ("works",) * 2]
    await eventually_async(lambda: begun == ["silent"])
    ends.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*starts)
    assert begun[:5] == ["silent", "silent", "works", "silent", "works"]


async def test_quick_starts_stay_limited() -> None:
    slots = StartSlots()
    gate = StartGate(2, slots)
    running, most = 0, 0

    async def start() -> None:
        nonlocal running, most
        async with gate.place(uuid.uuid4(), any_executor):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(start() for _ in range(20)))
    assert (most, slots.waiting) == (2, set())


@pytest.mark.django_db(transaction=True)
def test_hanging_start_leaves_room_for_automatic_ones() -> None:
    hanging = running_session()
    Intent.objects.create(session=hanging, kind=IntentKind.START)
    slots = StartSlots()
    before = start_allowance(MINE.owner, slots).left
    slots.waiting.add(hanging.id)
    assert start_allowance(MINE.owner, slots).left == before + 1
