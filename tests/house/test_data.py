"""The data directory is private, the secret key is generated once, and the database is durable."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from kandev.databases import database_settings, load_secret_key, prepare_data_directory
from tests.services import ROOT
from tests.supervisor.commands import environment

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of files")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_data_directory_and_key_are_private(tmp_path: Path) -> None:
    directory = prepare_data_directory(tmp_path / "new" / "data")
    load_secret_key(directory)
    assert mode_of(directory) == 0o700
    assert mode_of(directory / "secret-key") == 0o600


def test_embedded_database_is_private_from_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    env = environment(data)
    del env["KANDEV_DATABASE_URL"]
    argv = [sys.executable, "manage.py", "migrate", "-v0", "contenttypes"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, umask=0)
    assert done.returncode == 0, done.stderr
    assert (data / "kandev.sqlite3").exists()
    assert {mode_of(path) for path in data.iterdir()} == {0o600}


def test_readable_database_is_made_private_at_the_next_start(tmp_path: Path) -> None:
    files = [tmp_path / f"other.db{suffix}" for suffix in ("", "-wal", "-shm")]
    for path in files:
        path.touch()
        path.chmod(0o644)
    database_settings(f"sqlite:///{files[0]}", tmp_path, 15)
    assert {mode_of(path) for path in files} == {0o600}


def test_readable_data_directory_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    prepare_data_directory(tmp_path)
    assert mode_of(tmp_path) == 0o700


def test_shared_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(ImproperlyConfigured, match="shared with other users"):
        prepare_data_directory(tmp_path)


def refused(directory: Path) -> str:
    """Return the one line that ``serve`` prints if it cannot use its data directory."""
    argv = [sys.executable, "manage.py", "serve", "--port", "0"]
    env = environment(directory)
    for name in ("KANDEV_DATABASE_URL", "KANDEV_SECRET_KEY"):
        del env[name]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


@as_root
def test_data_directory_of_another_user_is_refused_in_one_line(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    line = refused(tmp_path)
    owner = f"kandev: KANDEV_DATA_DIR={tmp_path} belongs to nobody (uid 65534)"
    assert line.startswith(f"{owner}, but this process runs as root")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def run_by_nobody(data: Path) -> Iterator[None]:
    """Run the block as another user who owns the data directory."""
    os.chown(data, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def data() -> Iterator[Path]:
    """Yield a directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="kandev-data-", dir="/tmp") as directory:
        yield Path(directory)


@as_root
@pytest.mark.parametrize("mode", [0o500, 0o100])
def test_read_only_data_directory_is_refused(data: Path, mode: int) -> None:
    data.chmod(mode)
    with (
        run_by_nobody(data),
        pytest.raises(
            ImproperlyConfigured, match=f"{data} is not writable: make it writable, or choose another directory"
        ),
    ):
        prepare_data_directory(data)


@as_root
def test_secret_key_of_another_user_is_refused(data: Path) -> None:
    (data / "secret-key").touch(mode=0o600)
    with run_by_nobody(data), pytest.raises(ImproperlyConfigured, match="secret-key cannot be used: Permission denied"):
        load_secret_key(prepare_data_directory(data))


def test_concurrent_first_starts_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(load_secret_key, [tmp_path] * 8))
    assert len(keys) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret-key"]


def test_lock_timeout_is_shorter_than_a_lease(tmp_path: Path) -> None:
    assert database_settings("", tmp_path, lease_ttl=15)["OPTIONS"]["timeout"] == 5
    session = database_settings("postgres://u:p%40ss@db:5433/kandev?sslmode=require", tmp_path, lease_ttl=10)
    assert session["PASSWORD"] == "p@ss"
    assert session["PORT"] == 5433
    assert session["OPTIONS"]["sslmode"] == "require"
    assert "-c lock_timeout=4000" in session["OPTIONS"]["options"]


def test_server_ends_the_sessions_of_a_lost_host_within_a_lease(tmp_path: Path) -> None:
    session = database_settings("postgres://kandev@db.example/kandev", tmp_path, lease_ttl=10)
    words = session["OPTIONS"]["options"].split(" -c ")
    told = {name: int(value) for name, _, value in (word.partition("=") for word in words) if name.startswith("tcp_")}
    assert told == {
        "tcp_user_timeout": 4000,
        "tcp_keepalives_idle": 4,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": 3,
    }


@pytest.mark.parametrize("url", ["mysql://host/name", "kandev", "postgres://host", "sqlite://"])
def test_unsupported_database_url_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match="KANDEV_DATABASE_URL must look like"):
        database_settings(url, tmp_path, 15)


@pytest.mark.parametrize(
    "url", ["postgres://u:s3cr3t@db:x/kandev", "postgres://u:s3cr3t[@db/kandev", "postgres://u:s3cr3t/@db/kandev"]
)
def test_unreadable_database_url_is_reported_without_its_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match="KANDEV_DATABASE_URL has an invalid host or port") as refused:
        database_settings(url, tmp_path, 15)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.embedded
@pytest.mark.django_db
def test_embedded_database_survives_a_power_failure() -> None:
    def pragma(name: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA {name}")
            return cursor.fetchone()[0]

    assert pragma("journal_mode") == "wal"
    assert pragma("synchronous") == 2  # FULL
