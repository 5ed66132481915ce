"""An engine behind ssh: only the ssh server listens on its machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import Observed
from tests.docker.remote_engine import ADDRESS, RemoteEngineHarness
from tests.docker.ssh_server import SshServer
from tests.drills.process_groups import descendants
from tests.executors.harness import client_of, observe_one, row_of, spec_for
from tests.services import require
from tests.waiting import eventually_async


@pytest.fixture
def config(remote_harness: RemoteEngineHarness, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Yield the settings of an executor that reaches the engine through ssh."""
    require("sshd")
    server = SshServer(tmp_path / "ssh")
    yield {
        "docker_host": server.url(f"{remote_harness.engine.home}/docker.sock"),
        "ssh_key": str(server.key),
        "ssh_known_hosts": str(server.known_hosts),
        "publish": ADDRESS,
    }
    server.close()


async def test_session_runs_on_an_engine_reached_only_through_ssh(
    remote_harness: RemoteEngineHarness, config: dict[str, Any]
) -> None:
    remote_harness.config = config
    remote_harness.runtime.check_config(config)
    spec = spec_for(remote_harness)
    launched = await remote_harness.runtime.launch(spec)
    row = row_of(remote_harness, spec, launched)
    assert (await observe_one(remote_harness, row)).observed is Observed.ALIVE
    assert (await client_of(spec, launched).read_file("README"))["content"] == "hello\n"
    await client_of(spec, launched).snapshot()
    assert await remote_harness.runtime.push_work(row) is True
    assert await remote_harness.runtime.end(row) is True
    await eventually_async(lambda: not _dialing(), describe="every connection's process has ended")


def _dialing() -> list[int]:
    """Return the processes of connections: also those of the server, which end a little later than ours."""
    return [pid for pid in descendants(os.getpid()) if b"dial-stdio" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_unknown_host_key_is_rejected(
    remote_harness: RemoteEngineHarness, config: dict[str, Any], tmp_path: Path
) -> None:
    nobody = tmp_path / "nobody"
    nobody.write_text("")
    with pytest.raises(RuntimeUnavailable):
        await remote_harness.runtime.check_availability({**config, "ssh_known_hosts": str(nobody)})
