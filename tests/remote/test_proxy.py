"""All requests to an instance go through the host's one port, unchanged in both directions."""

from __future__ import annotations

import asyncio

import pytest

from executors_app.wire.errors import AgentctlRefused, StaleGeneration
from executors_app.wire.executions import Launched, LaunchSpec
from tests.executors.harness import client_of, start_agent
from tests.remote.harness import RemoteHarness
from tests.waiting import PATIENCE

LARGE = bytes(range(256)) * 8000


async def test_files_pass_both_ways_and_refusals_keep_their_code(spec: LaunchSpec, launched: Launched) -> None:
    client = client_of(spec, launched)
    made = await client.write_file("large", LARGE)
    assert (made["size"], made["created"]) == (len(LARGE), True)
    assert (await client.read_file("README"))["content"] == "hello\n"
    with pytest.raises(AgentctlRefused) as caught:
        await client.write_file("large", b"x", expected="0" * 64)
    assert (caught.value.status, caught.value.refusal) == (409, "conflict")
    with pytest.raises(AgentctlRefused) as caught:
        await client.read_file("../../etc/passwd")
    assert caught.value.status in (400, 404)


async def test_unusual_file_names_are_passed_unchanged(spec: LaunchSpec, launched: Launched) -> None:
    client = client_of(spec, launched)
    names = {"a b", "100%", "%2e%2e", "ä&b=c", "x+y", "a#b", "q?"}
    for name in names:
        await client.write_file(name, name.encode())
        assert (await client.read_file(name))["content"] == name
    assert names <= {entry["name"] for entry in (await client.list_files())["entries"]}


async def test_shell_works_through_the_host(spec: LaunchSpec, launched: Launched) -> None:
    data = b""
    async with asyncio.timeout(PATIENCE), client_of(spec, launched).shell("main", 80, 24) as shell:
        await shell.type(b"echo $((40 + 2))-from-there\n")
        async for piece in shell:
            data += piece if isinstance(piece, bytes) else b""
            if b"42-from-there" in data:
                break
    assert b"42-from-there" in data


async def test_newer_generation_closes_older_streams_and_refuses_their_commands(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched
) -> None:
    await start_agent(harness, spec, launched, "first")
    old, new = client_of(spec, launched, 1), client_of(spec, launched, 2)
    async with asyncio.timeout(PATIENCE), old.events(0, "") as older:
        assert await anext(aiter(older))
        async with new.events(0, "") as newer:
            assert await anext(aiter(newer))
            with pytest.raises(StaleGeneration):
                async for _ in older:
                    pass
    with pytest.raises(StaleGeneration):
        await old.prompt("m", "hello")
    with pytest.raises(StaleGeneration):
        async with old.events(0, ""):
            pass


async def test_turn_and_its_journal_pass_through_the_host(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched
) -> None:
    await start_agent(harness, spec, launched, "first")
    client = client_of(spec, launched)
    kinds: list[str] = []
    async with asyncio.timeout(30), client.events(0, "") as stream:
        assert (await client.prompt("m-1", "remember walrus"))["duplicate"] is False
        async for batch in stream:
            kinds += [line["kind"] for line in batch]
            await stream.ack(batch[-1]["seq"])
            if "turn.completed" in kinds:
                break
    assert kinds.index("prompt.accepted") < kinds.index("prompt.delivered") < kinds.index("turn.completed")
    assert (await client.prompt("m-1", "remember walrus"))["duplicate"] is True
