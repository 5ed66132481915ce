"""The settings of an executor on another machine, and the required mode of its token file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors_app.agentctl_client.client import tls_trust
from executors_app.runtimes.remote.config import read_host_config
from executors_app.wire.errors import RuntimeUnavailable

PIN = "ab" * 32
VALID: dict[str, Any] = {"url": "https://build1.example:8443", "token_file": "build1.token"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"fingerprint": PIN},
        {"fingerprint": "sha256:" + PIN.upper()},
        {"fingerprint": ":".join(["ab"] * 32)},
        {"url": "http://127.0.0.1:8443"},
        {"url": "http://[::1]:8443"},
        {"url": "https://build1.example/behind/a/proxy"},
        {"repositories": {"/here": "ssh://git@git.example/x.git"}},
    ],
    ids=str,
)
def test_valid_settings_are_accepted(more: dict[str, Any]) -> None:
    read = read_host_config(VALID | more)
    assert read.url_of("e").endswith("/instances/e")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": VALID["url"]},
        {"token_file": "x"},
        VALID | {"token": "a secret has no place in the database"},
        VALID | {"url": "http://build1.example:8443"},
        VALID | {"url": "ftp://build1.example"},
        VALID | {"url": "https://user:secret@build1.example"},
        VALID | {"url": "https://build1.example/?token=secret"},
        VALID | {"url": "https://build1.example\r\nX: y"},
        VALID | {"url": "https://build1.example:99999"},
        VALID | {"url": "https://"},
        VALID | {"url": 7},
        VALID | {"token_file": "../secret-key"},
        VALID | {"token_file": "/etc/passwd"},
        VALID | {"token_file": ".hidden"},
        VALID | {"token_file": ["x"]},
        VALID | {"fingerprint": "ab" * 20},
        VALID | {"fingerprint": 7},
        VALID | {"repositories": ["x"]},
        VALID | {"repositories": {"/here": 7}},
        VALID | {"repositories": {"/here": ""}},
    ],
    ids=str,
)
def test_invalid_settings_are_refused_without_showing_secrets(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+\.$"):
        read_host_config(config)


def test_token_file_must_not_be_readable_by_others(tmp_path: Path) -> None:
    config, file = read_host_config(VALID), tmp_path / "build1.token"
    with pytest.raises(RuntimeUnavailable, match="cannot be read"):
        config.token(tmp_path)
    file.write_text("the-token\n")
    file.chmod(0o640)
    with pytest.raises(RuntimeUnavailable, match="chmod 600"):
        config.token(tmp_path)
    file.chmod(0o600)
    assert config.token(tmp_path) == "the-token"


@pytest.mark.parametrize("pin", ["nonsense", "ab", 7, "é" * 64])
def test_invalid_fingerprint_matches_no_certificate(pin: Any) -> None:
    trust = tls_trust({"fingerprint": pin})
    assert isinstance(trust, aiohttp.Fingerprint)
    assert trust.fingerprint == bytes(32)
