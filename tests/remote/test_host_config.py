"""What an executor on another machine may be told, and what its token's file must be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors_app.errors import RuntimeUnavailable
from executors_app.http_client import tls_trust
from executors_app.remote_hosts import read_host_config

PIN = "ab" * 32
GOOD: dict[str, Any] = {"url": "https://build1.example:8443", "token_file": "build1.token"}


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
def test_good_settings_are_taken(more: dict[str, Any]) -> None:
    read = read_host_config(GOOD | more)
    assert read.url_of("e").endswith("/instances/e")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": GOOD["url"]},
        {"token_file": "x"},
        GOOD | {"token": "a secret has no place in the database"},
        GOOD | {"url": "http://build1.example:8443"},
        GOOD | {"url": "ftp://build1.example"},
        GOOD | {"url": "https://user:secret@build1.example"},
        GOOD | {"url": "https://build1.example/?token=secret"},
        GOOD | {"url": "https://build1.example\r\nX: y"},
        GOOD | {"url": "https://build1.example:99999"},
        GOOD | {"url": "https://"},
        GOOD | {"url": 7},
        GOOD | {"token_file": "../secret-key"},
        GOOD | {"token_file": "/etc/passwd"},
        GOOD | {"token_file": ".hidden"},
        GOOD | {"token_file": ["x"]},
        GOOD | {"fingerprint": "ab" * 20},
        GOOD | {"fingerprint": 7},
        GOOD | {"repositories": ["x"]},
        GOOD | {"repositories": {"/here": 7}},
        GOOD | {"repositories": {"/here": ""}},
    ],
    ids=str,
)
def test_bad_settings_are_refused_in_one_sentence_that_shows_no_secret(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+\.$"):
        read_host_config(config)


def test_token_file_must_not_be_readable_by_others(tmp_path: Path) -> None:
    config, file = read_host_config(GOOD), tmp_path / "build1.token"
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
