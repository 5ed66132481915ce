"""A tool call has one open permission request, however often its agent asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.agentctl.permissions import Permissions
from executors_app.agentctl.state_files import DurableStore
from executors_app.wire.protocol import WITHDRAWN
from tests.agentctl.journals import opened

OPTIONS = [{"option_id": "yes", "kind": "allow_once"}, {"option_id": "no", "kind": "reject_once"}]
Asking = asyncio.Task[str | None]


@pytest.fixture
async def permissions(tmp_path: Path) -> AsyncIterator[Permissions]:
    async with opened(tmp_path / "journal") as journal:
        yield Permissions(journal, DurableStore(tmp_path / "memory"))


async def ask(permissions: Permissions, command: str = "ls", turn: str = "m1", **call: Any) -> Asking:
    """Ask, and return once the request is open."""
    tool_call = {"tool_call_id": "call_0", "title": command, **call}
    request = {"tool_call": tool_call, "options": OPTIONS}
    asking = asyncio.create_task(permissions.ask(request, turn, auto_approve=False))
    await asyncio.sleep(0)
    return asking


def open_ids(permissions: Permissions) -> list[str]:
    return [each["permission_id"] for each in permissions.pending()]


async def test_repeated_request_gets_the_same_answer(permissions: Permissions) -> None:
    both = [await ask(permissions) for _ in range(2)]
    (permission,) = open_ids(permissions)
    await permissions.answer(permission, "yes")
    assert await asyncio.gather(*both) == ["yes", "yes"]
    assert open_ids(permissions) == []


async def test_request_that_shows_something_else_replaces_the_earlier(permissions: Permissions) -> None:
    permissions.note_tool_call({"tool_call_id": "call_0"})
    first = await ask(permissions, "ls")
    second = await ask(permissions, "rm -rf /")
    assert await first is None
    (shown,) = permissions.pending()
    assert shown["tool_call"]["title"] == "rm -rf /"
    await permissions.answer(shown["permission_id"], "no")
    assert await second == "no"


@pytest.mark.parametrize("first_answered", [0, 1])
async def test_requests_under_an_id_of_no_tool_call_are_answered_one_by_one(
    permissions: Permissions, first_answered: int
) -> None:
    permissions.note_tool_call({"tool_call_id": "call_1"})
    asking = [await ask(permissions, command, tool_call_id="shell-permission") for command in ("rm a", "rm b")]
    shown = permissions.pending()
    assert [each["tool_call"]["title"] for each in shown] == ["rm a", "rm b"]
    await permissions.answer(shown[first_answered]["permission_id"], "yes")
    await permissions.answer(shown[1 - first_answered]["permission_id"], "no")
    assert [await asking[first_answered], await asking[1 - first_answered]] == ["yes", "no"]


async def test_tool_calls_of_an_earlier_turn_are_forgotten(permissions: Permissions) -> None:
    permissions.note_tool_call({"tool_call_id": "call_0"})
    permissions.cancel_all("turn_cancelled")
    both = [await ask(permissions, command) for command in ("rm a", "rm b")]
    assert len(open_ids(permissions)) == 2
    permissions.cancel_all("turn_cancelled")
    assert await asyncio.gather(*both) == [None, None]


async def test_withdrawn_request_leaves_the_repeated_one_open(permissions: Permissions) -> None:
    first, second = await ask(permissions), await ask(permissions)
    first.cancel(WITHDRAWN)
    await asyncio.wait([first])
    (permission,) = open_ids(permissions)
    await permissions.answer(permission, "yes")
    assert (first.cancelled(), await second) == (True, "yes")


async def test_card_closes_when_both_requests_are_withdrawn(permissions: Permissions) -> None:
    both = [await ask(permissions) for _ in range(2)]
    for asking in both:
        asking.cancel(WITHDRAWN)
    await asyncio.wait(both)
    assert open_ids(permissions) == []


async def test_request_after_the_answer_is_asked_anew(permissions: Permissions) -> None:
    first = await ask(permissions)
    await permissions.answer(open_ids(permissions)[0], "yes")
    assert await first == "yes"
    again = await ask(permissions)
    assert len(open_ids(permissions)) == 1
    permissions.cancel_all("turn_cancelled")
    assert await again is None


@pytest.mark.parametrize(
    "other",
    [{"turn": "m2"}, {"sub_agent": "Sub-agent 1"}, {"tool_call_id": "call_1"}],
    ids=["turn", "sub-agent", "call"],
)
async def test_other_tool_calls_have_their_own_cards(permissions: Permissions, other: dict[str, str]) -> None:
    both = [await ask(permissions), await ask(permissions, **other)]
    assert len(open_ids(permissions)) == 2
    permissions.cancel_all("turn_cancelled")
    assert await asyncio.gather(*both) == [None, None]


async def test_calls_without_an_id_are_never_joined(permissions: Permissions) -> None:
    both = [await ask(permissions, tool_call_id="") for _ in range(2)]
    assert len(open_ids(permissions)) == 2
    permissions.cancel_all("turn_cancelled")
    assert await asyncio.gather(*both) == [None, None]
