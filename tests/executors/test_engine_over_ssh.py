"""An unreachable engine behind ssh: operators read ssh's own error, members read no address."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.remote_docker.runtime import RUNTIME
from executors_app.wire.errors import RuntimeUnavailable
from tests.docker.certificates import CLIENT, Authority

CONFIG = {"docker_host": "ssh://kandev@build2.example:2222", "publish": "10.0.0.5"}
REFUSALS = {
    "an unknown host": (
        "No ED25519 host key is known for build2.example\r\nHost key verification failed.\r",
        "ssh said: No ED25519 host key is known for build2.example Host key verification failed.",
    ),
    "a changed key": ("@@@@@@@\n@ WARNING @\n\033[31mIt has changed.", "ssh said: WARNING [31mIt has changed."),
    "no docker on the host": ("sh: docker: not found", "ssh said: sh: docker: not found."),
}


def install_fake_ssh(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script on the path as the program ``ssh``."""
    program = directory / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(("text", "shown"), REFUSALS.values(), ids=REFUSALS)
async def test_operators_read_the_error_of_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, shown: str
) -> None:
    (tmp_path / "said").write_text(text)
    install_fake_ssh(tmp_path, monkeypatch, f"cat {tmp_path}/said >&2; exit 255")
    with pytest.raises(RuntimeUnavailable) as refused:
        await RUNTIME.check_availability(CONFIG)
    assert refused.value.message_for_staff == (
        "The Docker engine cannot be reached: the connection over ssh was closed. "
        f"{shown} Its address is {CONFIG['docker_host']}."
    )
    assert "build2" not in refused.value.message


async def test_long_error_of_ssh_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_ssh(tmp_path, monkeypatch, "head -c 50000 /dev/zero | tr '\\0' x >&2")
    with pytest.raises(RuntimeUnavailable) as refused:
        await RUNTIME.check_availability(CONFIG)
    assert len(refused.value.message_for_staff) < 5000


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh is installed")
async def test_real_ssh_reports_a_refused_connection() -> None:
    with pytest.raises(RuntimeUnavailable, match="closed") as refused:
        await RUNTIME.check_availability({**CONFIG, "docker_host": "ssh://127.0.0.3:1"})
    assert "Connection refused" in refused.value.message_for_staff


async def test_address_of_unreachable_tls_engine_is_for_staff(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("client", CLIENT)
    config: dict[str, Any] = {
        "docker_host": "tcp://127.0.0.3:1",
        "publish": "10.0.0.5",
        "tls_ca": str(authority.certificate),
        "tls_cert": str(pair.certificate),
        "tls_key": str(pair.key),
    }
    with pytest.raises(RuntimeUnavailable) as refused:
        await RUNTIME.check_availability(config)
    assert refused.value.message == "The Docker engine cannot be reached: Connection refused"
    assert "tcp://127.0.0.3:1" in refused.value.message_for_staff
