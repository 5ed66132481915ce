"""The systemd units: restarts never harm agents, services are sandboxed, and their commands work."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import load_command_class

from kandev.environment import read_environment
from tests.drills.deployment import Deployment
from tests.network import free_port
from tests.services import ROOT, require
from tests.waiting import PATIENCE, eventually

SUFFIXES = {".service", ".socket", ".slice", ".timer"}
UNITS = sorted(path for path in (ROOT / "deploy").iterdir() if path.suffix in SUFFIXES)
BY_TIMER = [path.with_suffix(".service") for path in UNITS if path.suffix == ".timer"]
DRAIN = ROOT / "deploy/kandev-drain.service"
SERVICES = [path for path in UNITS if path.suffix == ".service" and path not in (*BY_TIMER, DRAIN)]
WITH_AGENTS = {"kandev-supervisor.service", "kandev-agents.service"}
INSTALLED = "/srv/kandev"


class Unit(configparser.RawConfigParser):
    """The sections of a unit, with option names as written."""

    def __init__(self, path: Path):
        super().__init__(strict=True)
        self.read_string(path.read_text())

    def optionxform(self, optionstr: str) -> str:
        """Keep the name as written."""
        return optionstr


def service(path: Path) -> dict[str, str]:
    return dict(Unit(path)["Service"])


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_service_is_restarted_however_it_ended(path: Path) -> None:
    unit = Unit(path)
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Service"]["User"] == "kandev"
    assert unit["Service"]["Slice"] == "kandev.slice"
    assert unit["Service"]["NoNewPrivileges"] == "yes"


@pytest.mark.parametrize("path", BY_TIMER, ids=lambda path: path.name)
def test_timer_service_runs_as_the_service_user_and_is_sandboxed(path: Path) -> None:
    unit = service(path)
    assert (unit["Type"], unit["User"], unit["EnvironmentFile"]) == ("oneshot", "kandev", "/etc/kandev/environment")
    assert (unit["ProtectSystem"], unit["PrivateTmp"], unit["CapabilityBoundingSet"]) == ("strict", "yes", "")
    command = Path(unit["ExecStart"].split()[0].replace(INSTALLED, str(ROOT)))
    assert os.access(command, os.X_OK)


def test_host_is_drained_before_its_supervisor_is_stopped() -> None:
    unit = Unit(DRAIN)
    # systemd stops in the opposite order, and only a running supervisor can stop sessions.
    assert "kandev-supervisor.service" in unit["Unit"]["After"].split()
    # Else its containers and its database end in the middle of the drain.
    assert {"docker.service", "postgresql.service"} <= set(unit["Unit"]["After"].split())
    drain = unit["Service"]
    assert (drain["Type"], drain["RemainAfterExit"], drain["User"]) == ("oneshot", "yes", "kandev")
    assert (drain["ProtectSystem"], drain["PrivateTmp"], drain["CapabilityBoundingSet"]) == ("strict", "yes", "")
    for command in (drain["ExecStart"], drain["ExecStop"]):
        words = shlex.split(command.removeprefix("-"))
        assert words[:5] == ["/usr/bin/env", ".venv/bin/python", "manage.py", "hosts", words[4]]
        parsed = load_command_class("sessions_app", "hosts").create_parser("manage.py", "hosts").parse_args(words[4:])
        assert (parsed.action, parsed.name) == (words[4], "%H")
        assert getattr(parsed, "for_shutdown", False) or parsed.after_shutdown, "what people have decided stays"
        assert getattr(parsed, "timeout", 0) < int(drain["TimeoutStopSec"])


def test_documented_settings_are_the_shipped_ones() -> None:
    text = (ROOT / "deploy/environment").read_text()
    settings = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    assert f"```ini\n{settings}```" in (ROOT / "docs/deploy.md").read_text()
    unit = dict(line.split("=", 1) for line in settings.splitlines())
    read = read_environment({name: value for name, value in unit.items() if not name.endswith("_FILE")})
    assert (read.allowed_hosts, read.trusted_origins) == (("kandev.example",), ("https://kandev.example",))
    written = {f"/etc/kandev/{name}" for name in ("database-url", "redis-url", "secret-key", "metrics-token")}
    assert {value for name, value in unit.items() if name.endswith("_FILE")} == written


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_agents_outlive_the_service_that_started_them(path: Path) -> None:
    unit = service(path)
    if path.name not in WITH_AGENTS:
        assert "KillMode" not in unit, "systemd stops every process of the unit"
        return
    assert (unit["KillMode"], unit["OOMPolicy"], unit["Delegate"]) == ("process", "continue", "yes")
    of_files = {"PrivateTmp", "ProtectSystem", "ProtectHome", "PrivateDevices", "ReadWritePaths", "RuntimeDirectory"}
    assert not of_files & set(unit), "a living agent would keep files that the restart removes"


def test_services_without_agents_are_sandboxed() -> None:
    for path in SERVICES:
        if path.name not in WITH_AGENTS:
            unit = service(path)
            assert (unit["ProtectSystem"], unit["PrivateTmp"], unit["CapabilityBoundingSet"]) == ("strict", "yes", "")
            assert "/var/lib/kandev" in unit["ReadWritePaths"]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a directory with the units, with paths of this project."""
    for path in UNITS:
        text = path.read_text().replace("/usr/bin/env .venv/bin/python", sys.executable)
        (tmp_path / path.name).write_text(text.replace(INSTALLED, str(ROOT)))
    return tmp_path


def test_systemd_verifies_the_units(installed: Path) -> None:
    require("systemd")
    instances = [str(installed / path.name).replace("@.", "@8000.") for path in UNITS]
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *instances]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "kandev" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@pytest.mark.parametrize(("name", "most"), [("kandev-web@.service", 30), ("kandev-worker.service", 30)])
def test_systemd_rates_their_exposure_low(installed: Path, name: str, most: int) -> None:
    require("systemd")
    command = [
        "systemd-analyze",
        "security",
        "--offline=yes",
        f"--threshold={most}",
        "--no-pager",
        str(installed / name),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def command_of(name: str) -> list[str]:
    """Return the command of a unit, with this machine's Python."""
    unit = service(ROOT / "deploy" / name)
    words = shlex.split(unit["ExecStart"])
    # Relative, so that a process keeps the release that the link of its working directory led to when it began.
    assert words[:2] == ["/usr/bin/env", ".venv/bin/python"]
    assert unit["WorkingDirectory"] == INSTALLED
    return [sys.executable, *words[2:]]


@pytest.mark.database
def test_units_serve_on_the_port_of_their_socket(tmp_path: Path) -> None:
    require("systemd")
    deployment = Deployment(tmp_path)
    deployment.prepare()
    port = free_port()
    activate = ["systemd-socket-activate", f"--listen=127.0.0.1:{port}"]
    activate += [f"--setenv={name}={value}" for name, value in deployment.env.items()]
    deployment.url = f"http://127.0.0.1:{port}"
    log = (tmp_path / "units.log").open("wb")
    started = [
        subprocess.Popen(words, cwd=ROOT, env=deployment.env, stderr=log, stdout=log, start_new_session=True)
        for words in (
            [*activate, *command_of("kandev-web@.service")],
            command_of("kandev-supervisor.service"),
            command_of("kandev-worker.service"),
        )
    ]
    try:
        eventually(deployment.is_ready, timeout=120, describe="the units' commands serve Kandev")
        assert all(process.poll() is None for process in started)
        for process in started:
            process.send_signal(signal.SIGTERM)
        ends = [process.wait(60) for process in started]
        assert ends[1:] == [0, 0], (tmp_path / "units.log").read_text()[-2000:]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)
        log.close()
        deployment.close()


def test_host_daemon_starts_as_in_its_unit(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a token of these tests alone, long enough for anybody")
    port = free_port()
    replaced = {
        "0.0.0.0:8443": f"127.0.0.1:{port}",
        "%H": "localhost",
        "/etc/kandev/host-token": str(token),
        "/var/lib/kandev/host": str(tmp_path / "host"),
        "/srv/repositories": str(tmp_path),
    }
    words = [replaced.get(word, word) for word in command_of("kandev-agents.service")]
    ready = tmp_path / "ready.json"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    process = subprocess.Popen([*words, "--ready-file", str(ready)], cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        eventually(ready.exists, timeout=60, describe="agentctl is ready")
        assert json.loads(ready.read_text())["url"].startswith("https://")
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
            pass
    finally:
        process.terminate()
        assert process.wait(60) == 0
