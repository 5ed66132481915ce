"""Forwarded headers are trusted only from configured proxies, and only behind https."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from kandev.environment import InvalidEnvironment, read_environment
from kandev.web_server import TrustedProxiesMiddleware
from tests.services import ROOT

NETWORKS = [ip_network("10.0.0.0/24"), ip_network("127.0.0.0/8"), ip_network("fd00::/8")]
BEHIND_TLS = {
    "KANDEV_SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "KANDEV_ALLOWED_HOSTS": "kandev.example",
    "KANDEV_TRUSTED_ORIGINS": "https://kandev.example",
}


async def seen(peer: str | None, forwarded: str | None, proto: str | None, kind: str = "http") -> tuple[str, str]:
    """Return client address and scheme as the application sees them."""
    reports: list[dict[str, Any]] = []

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        reports.append(scope)

    headers = [(b"x-forwarded-for", forwarded), (b"x-forwarded-proto", proto)]
    scope = {
        "type": kind,
        "scheme": {"http": "http", "websocket": "ws"}[kind],
        "client": peer and [peer, 4711],
        "headers": [(name, value.encode()) for name, value in headers if value is not None],
    }
    await TrustedProxiesMiddleware(application, NETWORKS)(scope, None, None)
    return (reports[0]["client"] or [""])[0], reports[0]["scheme"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "proto", "expected"),
    [
        ("10.0.0.7", "203.0.113.5", "https", ("203.0.113.5", "https")),
        ("::ffff:10.0.0.7", "203.0.113.5", "https", ("203.0.113.5", "https")),
        ("fd00::1", "2001:db8::5", "https", ("2001:db8::5", "https")),
        ("10.0.0.7", "203.0.113.5", "http", ("203.0.113.5", "http")),
        ("10.0.0.7", "203.0.113.5", None, ("203.0.113.5", "http")),
        ("10.0.0.7", "198.51.100.1, 203.0.113.5", "https", ("203.0.113.5", "https")),  # the first is the client's claim
        ("10.0.0.7", "203.0.113.5, 10.0.0.9", "https", ("203.0.113.5", "https")),  # two trusted proxies
        ("10.0.0.7", "203.0.113.5:40001", "https", ("203.0.113.5", "https")),  # a new port for each connection
        ("10.0.0.7", "198.51.100.1, 203.0.113.5:40001, 10.0.0.9:8443", "https", ("203.0.113.5", "https")),
        ("10.0.0.7", "[2001:db8::5]:40001", "https", ("2001:db8::5", "https")),
        ("10.0.0.7", "[2001:db8::5]", "https", ("2001:db8::5", "https")),
        ("10.0.0.7", "nonsense", "https", ("", "https")),
        ("10.0.0.7", "198.51.100.1, unknown", "https", ("", "https")),  # never the entry that the client wrote
        ("10.0.0.7", "10.0.0.9", "https", ("10.0.0.9", "https")),
        ("10.0.0.7", None, "https", ("10.0.0.7", "https")),
        ("10.0.0.7", "", "https", ("10.0.0.7", "https")),
        ("10.0.0.7", "203.0.113.5", "https, http", ("203.0.113.5", "http")),  # the proxy added the last one
        ("10.0.1.7", "203.0.113.5", "https", ("10.0.1.7", "http")),
        ("203.0.113.9", "127.0.0.1", "https", ("203.0.113.9", "http")),
        (None, "127.0.0.1", "https", ("", "http")),
    ],
)
async def test_client_address_and_scheme_are_read_from_trusted_proxies(
    peer: str | None, forwarded: str | None, proto: str | None, expected: tuple[str, str]
) -> None:
    assert await seen(peer, forwarded, proto) == expected
    in_sockets = (expected[0], expected[1].replace("http", "ws"))
    assert await seen(peer, forwarded, proto, "websocket") == in_sockets


def settings_under(tmp_path: Path, **environment: str) -> list[str]:
    """Return the networks that a process trusts."""
    code = (
        "import json; from django.conf import settings; print(json.dumps([*map(str, settings.KANDEV_TRUSTED_PROXIES)]))"
    )
    done = run(tmp_path, "-c", code, **environment)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def run(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "KANDEV_DATA_DIR": str(tmp_path / "data"),
        "DJANGO_SETTINGS_MODULE": "kandev.settings",
        **environment,
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        ({"KANDEV_TRUSTED_PROXIES": "10.0.0.0/8"}, []),
        ({"KANDEV_TRUSTED_ORIGINS": "http://kandev.example"}, []),
        (BEHIND_TLS, ["127.0.0.0/8", "::1/128"]),
        ({**BEHIND_TLS, "KANDEV_TRUSTED_PROXIES": "10.0.0.5, fd00::/8"}, ["10.0.0.5/32", "fd00::/8"]),
    ],
    ids=["nothing", "no origin", "no https", "on this machine", "named"],
)
def test_trusted_proxies_follow_the_settings(tmp_path: Path, environment: dict[str, str], expected: list[str]) -> None:
    assert settings_under(tmp_path, **environment) == expected


@pytest.mark.parametrize("value", ["10.0.0.5/8", "proxy.example", "*"])
def test_invalid_network_stops_the_start(value: str) -> None:
    with pytest.raises(InvalidEnvironment, match=r"^KANDEV_TRUSTED_PROXIES=.*: must be addresses or networks"):
        read_environment({"KANDEV_TRUSTED_PROXIES": value})


@pytest.mark.parametrize("redis", ["", "redis://:secret@redis.example:6379/0"])
def test_deployment_behind_tls_passes_the_check(tmp_path: Path, redis: str) -> None:
    done = run(
        tmp_path, "manage.py", "check", "--deploy", "--fail-level", "WARNING", **BEHIND_TLS, KANDEV_REDIS_URL=redis
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "no issues (3 silenced)" in done.stdout


def test_deployment_without_tls_is_warned(tmp_path: Path) -> None:
    done = run(tmp_path, "manage.py", "check", "--deploy", "--fail-level", "WARNING")
    assert done.returncode == 1
    assert "security.W012" in done.stderr  # insecure cookies
