"""The settings of an executor on a remote engine, and the authentication of both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.remote_docker.config import read_remote_config
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.executions import Observed
from tests.docker.certificates import CLIENT, Authority
from tests.docker.remote_engine import RemoteEngineHarness
from tests.executors.harness import observe_one, row_of, spec_for
from tests.waiting import PATIENCE


@pytest.fixture
def valid_config(tmp_path: Path) -> dict[str, Any]:
    """Return valid settings."""
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("kandev", CLIENT)
    return {
        "docker_host": "tcp://engine.example:2376",
        "tls_ca": str(authority.certificate),
        "tls_cert": str(pair.certificate),
        "tls_key": str(pair.key),
        "publish": "10.0.0.5",
    }


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"docker_host": ""}, "docker_host must be"),
        ({"docker_host": "unix:///run/docker.sock"}, "docker_host must be"),
        ({"docker_host": "http://engine.example:2375"}, "docker_host must be"),
        ({"docker_host": "tcp://engine.example"}, "docker_host must be"),
        ({"docker_host": "tcp://engine.example:99999"}, "docker_host must be"),
        ({"docker_host": "tcp://engine.example:2376/elsewhere"}, "docker_host must be"),
        ({"docker_host": "ssh://-oProxyCommand=x"}, "docker_host must be"),
        ({"docker_host": "ssh://engine.example"}, "has no effect with ssh"),
        ({"ssh_key": "/key"}, "has no effect with tcp"),
        ({"tls_key": ""}, "tls_key is missing"),
        ({"tls_ca": "ca.pem"}, "absolute path"),
        ({"tls_cert": "/nowhere/cert.pem"}, "cannot be read"),
        ({"publish": ""}, "publish must be"),
        ({"publish": "engine.example"}, "publish must be"),
        ({"publish": "0.0.0.0"}, "host must name"),  # noqa: S104 - refused
        ({"host": "a b"}, "without spaces"),
        ({"host": "a/b"}, "host must be"),
        ({"user": "root"}, "UID:GID"),
        ({"user": "61817:1"}, "61817"),
        ({"user": "0:1000"}, "root"),
        ({"memory_mb": 1}, "memory_mb"),
        ({"dokcer_host": "x"}, "remote_docker has no setting dokcer_host"),
        ({"publish": 5}, "publish must be a string"),
    ],
)
def test_invalid_setting_is_rejected_in_one_sentence(
    valid_config: dict[str, Any], change: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        read_remote_config({**valid_config, **change})


def test_valid_settings_are_accepted(valid_config: dict[str, Any]) -> None:
    read = read_remote_config({**valid_config, "memory_mb": 512, "publish": "fd00::5", "user": "7:8"})
    assert (read.host, read.publish, read.user, read.config.memory_mb) == ("[fd00::5]", "fd00::5", "7:8", 512)


def test_key_readable_by_others_is_rejected(valid_config: dict[str, Any]) -> None:
    Path(valid_config["tls_key"]).chmod(0o644)
    with pytest.raises(ValueError, match="other users can read"):
        read_remote_config(valid_config)


def test_ssh_never_prompts_and_checks_host_keys() -> None:
    read = read_remote_config({"docker_host": "ssh://agent@engine.example:2222/run/other.sock", "publish": "10.0.0.5"})
    command = read.address.ssh_command(7.4)
    assert command[:2] == ["ssh", "-T"]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=7"} <= set(command)
    assert command[-7:] == [
        *("--", "engine.example", "docker"),
        *("--host", "unix:///run/other.sock", "system", "dial-stdio"),
    ]


async def test_engine_with_another_authoritys_certificate_is_rejected(
    remote_harness: RemoteEngineHarness, tmp_path: Path
) -> None:
    strange = Authority(tmp_path / "strange")
    with pytest.raises(RuntimeUnavailable, match=r"(?i)certificate"):
        await remote_harness.runtime.check_availability({**remote_harness.config, "tls_ca": str(strange.certificate)})


async def test_engine_rejects_a_foreign_client_certificate(remote_harness: RemoteEngineHarness, tmp_path: Path) -> None:
    pair = Authority(tmp_path / "strange").issue("stranger", CLIENT)
    config = {**remote_harness.config, "tls_cert": str(pair.certificate), "tls_key": str(pair.key)}
    with pytest.raises(RuntimeUnavailable):
        await remote_harness.runtime.check_availability(config)
    spec = spec_for(remote_harness)
    seen = await observe_one(remote_harness, row_of(remote_harness, spec, config=config))
    assert (seen.observed, seen.reason) == (Observed.UNKNOWN, "runtime_unavailable")


async def test_unreachable_engine_does_not_affect_other_engines(remote_harness: RemoteEngineHarness) -> None:
    spec = spec_for(remote_harness)
    row = row_of(remote_harness, spec, await remote_harness.runtime.launch(spec))
    away = row_of(
        remote_harness,
        spec_for(remote_harness),
        config={**remote_harness.config, "docker_host": "tcp://127.0.0.3:1"},
    )
    seen = await remote_harness.runtime.observe([away, row], timeout=PATIENCE, concurrency=5)
    assert seen[row.id].observed is Observed.ALIVE
    assert (seen[away.id].observed, seen[away.id].reason) == (Observed.UNKNOWN, "runtime_unavailable")
