"""Observing many hosts at once: trouble with one does not affect the sessions of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executors_app.runtimes.remote.runtime import Remote
from executors_app.wire.errors import AgentctlForeign, RuntimeUnavailable
from executors_app.wire.executions import Launched, LaunchSpec, Observed
from tests.executors.harness import client_of, observe_one, row_of, spec_for
from tests.remote.harness import RemoteHarness
from tests.remote.machines import Machine
from tests.support import fake_agentctl
from tests.waiting import PATIENCE

OTHER_PIN = "sha256:" + "ab" * 32


@pytest.fixture
def second(tmp_path: Path, repository: Path) -> Iterator[Machine]:
    """Yield a second host."""
    made = Machine(tmp_path / "second", [str(repository)], address="127.0.0.3")
    made.start()
    yield made
    made.close()


async def test_hanging_host_makes_only_its_own_sessions_unknown(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched, second: Machine, tmp_path: Path
) -> None:
    remote_spec = replace(spec_for(harness), config=second.config_in(tmp_path / "data"))
    elsewhere = await harness.runtime.launch(remote_spec)
    rows = [row_of(harness, spec, launched), row_of(harness, remote_spec, elsewhere, config=remote_spec.config)]
    second.freeze()
    for timeout in (2.0, 8.0, 32.0):
        seen = await harness.runtime.observe(rows, timeout=timeout, concurrency=5)
        if seen[spec.execution_id].reason != "timeout":
            break  # otherwise the machine is too busy for this host to answer in time
    assert seen[spec.execution_id].observed is Observed.ALIVE
    assert (seen[remote_spec.execution_id].observed, seen[remote_spec.execution_id].reason) == (
        Observed.UNKNOWN,
        "timeout",
    )
    second.thaw()
    assert (await Remote().observe(rows, timeout=PATIENCE, concurrency=5))[
        remote_spec.execution_id
    ].observed is Observed.ALIVE


async def test_observing_many_executions_of_a_host_takes_one_request(harness: RemoteHarness) -> None:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(
            fake_agentctl.http_response(200, b'{"host_id": "h", "instances": []}', "Content-Type: application/json")
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        config = harness.config | {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        rows = [row_of(harness, spec_for(harness), config=config) for _ in range(100)]
        seen = await harness.runtime.observe(rows, timeout=PATIENCE, concurrency=5)
    assert [line.partition(b"?")[0] for line in requests] == [b"GET /instances"]
    assert {one.observed for one in seen.values()} == {Observed.DEAD}


async def test_unanswering_host_is_not_polled_during_backoff(harness: RemoteHarness) -> None:
    facts = row_of(harness, spec_for(harness))
    harness.machine.freeze()
    assert (await observe_one(harness, facts, timeout=0.3)).reason == "timeout"
    async with asyncio.timeout(PATIENCE):
        assert (await observe_one(harness, facts, timeout=3600)).reason == "timeout"
    harness.machine.thaw()
    await harness.runtime.check_availability(harness.config)
    assert (await observe_one(harness, facts)).observed is Observed.DEAD, "a host that answers is asked again"


UNTRUSTED = {
    "another certificate": ({"fingerprint": OTHER_PIN}, "certificate"),
    "no pin and an untrusted issuer": ({"fingerprint": ""}, "certificate"),
    "a closed port": ({"url": "https://127.0.0.2:1"}, "refused"),
    "invalid settings": ({"url": "ftp://x"}, "runtime_unavailable"),
    "a missing token file": ({"token_file": "none"}, "runtime_unavailable"),
}


@pytest.mark.parametrize(("changes", "reason"), UNTRUSTED.values(), ids=UNTRUSTED)
async def test_untrusted_host_proves_nothing(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched, changes: dict[str, str], reason: str, tmp_path: Path
) -> None:
    config = harness.config | changes
    seen = await observe_one(harness, row_of(harness, spec, launched, config=config))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, reason)
    with pytest.raises(RuntimeUnavailable) as refused:
        await harness.runtime.check_availability(config)
    assert config["url"] not in refused.value.message and str(tmp_path) not in refused.value.message
    assert await harness.runtime.end(row_of(harness, spec, launched, config=config)) is False
    assert (await observe_one(harness, row_of(harness, spec, launched))).observed is Observed.ALIVE


async def test_probe_names_the_certificate_of_the_host(harness: RemoteHarness) -> None:
    shown = str(harness.config["fingerprint"]).removeprefix("sha256:").replace(":", "").lower()
    with pytest.raises(RuntimeUnavailable) as refused:
        await harness.runtime.check_availability(harness.config | {"fingerprint": OTHER_PIN})
    assert f"It presented sha256:{shown}, but only {OTHER_PIN} is trusted." in refused.value.message_for_staff
    assert str(harness.config["url"]) in refused.value.message_for_staff
    assert "sha256" not in refused.value.message


async def test_wrong_token_proves_nothing_and_is_reported(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched, tmp_path: Path
) -> None:
    file = tmp_path / "data" / "hosts" / "machine.token"
    file.write_text("not the token of the host")
    seen = await observe_one(harness, row_of(harness, spec, launched))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "foreign")
    with pytest.raises(RuntimeUnavailable, match="rejected our token"):
        await harness.runtime.launch(spec)
    file.chmod(0o644)
    with pytest.raises(RuntimeUnavailable, match="chmod 600"):
        await harness.runtime.check_availability(harness.config)


async def test_no_token_is_sent_to_a_host_with_another_certificate(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched
) -> None:
    client = client_of(replace(spec, config=harness.config | {"fingerprint": OTHER_PIN}), launched)
    with pytest.raises(AgentctlForeign) as caught:
        await client.status()
    assert caught.value.details["reason"] == "certificate"
    with pytest.raises(AgentctlForeign):
        async with client.events(0, ""):
            pass


async def test_host_that_never_had_an_execution_cannot_declare_it_dead(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched, second: Machine, tmp_path: Path
) -> None:
    moved = second.config_in(tmp_path / "data")
    seen = await observe_one(harness, row_of(harness, spec, launched, config=moved))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "other_host")


async def test_dead_instance_is_unreachable_and_its_token_stays_secret(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched
) -> None:
    harness.kill(spec)
    with pytest.raises(Exception, match="is not running") as caught:
        await client_of(spec, launched).status()
    assert getattr(caught.value, "details", {})["reason"] == "gateway"


async def test_orphans_are_listed_and_removed_only_with_proof(
    harness: RemoteHarness, spec: LaunchSpec, launched: Launched
) -> None:
    configs = [harness.config]
    assert await harness.runtime.orphans({spec.execution_id}, configs) == []
    (orphan,) = await harness.runtime.orphans(set(), configs)
    assert (orphan.execution_id, orphan.status) == (spec.execution_id, "alive")
    assert await harness.runtime.remove_orphan(replace(orphan, id="another"), configs) is False
    assert await harness.runtime.remove_orphan(orphan, configs) is True
    assert await harness.runtime.orphans(set(), configs) == []
    assert harness.machine.processes(spec.execution_id) == []
    assert Path(launched.worktree_path, "README").exists()
