"""The environment is typed, and errors in it are reported in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from kandev.environment import (
    CLIENT_VARIABLES,
    PROCESS_MARKERS,
    TEST_SWITCHES,
    Environment,
    InvalidEnvironment,
    read_environment,
    variable_name,
)
from tests.services import ROOT


def test_empty_environment_gives_the_defaults() -> None:
    read = read_environment({})
    assert (read.reconcile_interval, read.max_restarts, read.lease_ttl, read.start_timeout) == (30, 5, 15, 300)
    assert read.recovery_policy == "auto"
    assert read.continue_ == ""
    assert read.data_dir == Path("~/.kandev").expanduser()


def test_values_are_parsed() -> None:
    read = read_environment(
        {
            "KANDEV_LEASE_TTL": "2.5",
            "KANDEV_CONTINUE": "off",
            "KANDEV_ALLOWED_HOSTS": "one.example, two.example",
            "KANDEV_REPOSITORY_ROOTS": os.pathsep.join(("/srv/a", "/srv/b")),
        }
    )
    assert read.lease_ttl == 2.5
    assert read.continue_ == "off"
    assert read.allowed_hosts == ("one.example", "two.example")
    assert read.repository_roots == (Path("/srv/a"), Path("/srv/b"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KANDEV_LEASE_TTL", "0"),
        ("KANDEV_LEASE_TTL", "-1"),
        ("KANDEV_LEASE_TTL", "nan"),
        ("KANDEV_LEASE_TTL", "soon"),
        ("KANDEV_MAX_RESTARTS", "0"),
        ("KANDEV_MAX_RESTARTS", "2.5"),
        ("KANDEV_RECOVERY_POLICY", "always"),
        ("KANDEV_CONTINUE", "yes"),
        ("KANDEV_LOG_FORMAT", "xml"),
        ("KANDEV_CRASH_AT", "somewhere"),
    ],
)
def test_invalid_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironment, match=f"^{name}={value}: must be "):
        read_environment({name: value})


def test_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidEnvironment, match=r"KANDEV_LEASE_TLT: did you mean KANDEV_LEASE_TTL\?$"):
        read_environment({"KANDEV_LEASE_TLT": "15"})


@pytest.mark.parametrize("name", ["KANDEV_SERVICE_HOST", "KANDEV_PORT", "KANDEV_PORT_8000_TCP", "KANDEV_EXECUTION_ID"])
def test_names_set_by_other_programs_are_allowed(name: str) -> None:
    assert read_environment({name: "anything"}) == read_environment({})


def test_secret_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sesame\n")
    assert read_environment({"KANDEV_SECRET_KEY_FILE": str(file)}).secret_key == "sesame"


def test_secret_from_two_sources_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment, match="remove one of them"):
        read_environment({"KANDEV_SECRET_KEY": "a", "KANDEV_SECRET_KEY_FILE": str(tmp_path / "key")})
    with pytest.raises(InvalidEnvironment, match="KANDEV_SECRET_KEY_FILE cannot be read"):
        read_environment({"KANDEV_SECRET_KEY_FILE": str(tmp_path / "key")})


def test_secrets_are_not_shown() -> None:
    read = read_environment({"KANDEV_SECRET_KEY": "sesame", "KANDEV_DATABASE_URL": "postgres://u:sesame@h/n"})
    assert "sesame" not in repr(read)


def test_crash_point_outside_a_drill_is_refused() -> None:
    with pytest.raises(InvalidEnvironment, match="KANDEV_CRASH_DIR"):
        read_environment({"KANDEV_CRASH_AT": "sweep.decided"})


def test_command_with_an_invalid_environment_prints_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "KANDEV_DATA_DIR": str(tmp_path), "KANDEV_MAX_RESTART": "3"}
    ended = subprocess.run(
        [sys.executable, "manage.py", "migrate"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == "kandev: unknown setting KANDEV_MAX_RESTART: did you mean KANDEV_MAX_RESTARTS?\n"


def test_token_of_the_guides_is_no_unknown_setting() -> None:
    assert read_environment({"KANDEV_TOKEN": "of a program that calls Kandev"}) == read_environment({})


def test_guides_name_only_known_variables() -> None:
    known = {variable_name(field) for field in fields(Environment)}
    known |= {f"{name}_FILE" for name in known} | CLIENT_VARIABLES | TEST_SWITCHES | PROCESS_MARKERS
    for guide in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        exported = re.findall(r"\b(?:export |set )?(KANDEV_[A-Z_]+)=", guide.read_text())
        assert set(exported) <= known, guide.name


def test_every_setting_is_read_by_code() -> None:
    settings = (ROOT / "kandev" / "settings.py").read_text()
    own = {ROOT / "kandev" / name for name in ("environment.py", "settings.py")}
    files = [path for name in ("executors_app", "kandev", "sessions_app") for path in (ROOT / name).rglob("*.py")]
    code = "".join(path.read_text() for path in files if path not in own)
    for field in fields(Environment):
        name = variable_name(field)
        others = settings.replace(f"{name} = _env.{field.name}\n", "")
        assert re.search(rf"\b{name}\b", code) or re.search(rf"\b({name}|_env\.{field.name})\b", others), name
