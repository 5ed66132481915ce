"""A temporary PostgreSQL server on the loopback interface; it ends with the process that started it."""

from __future__ import annotations

import atexit
import ctypes
import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tests.network import free_port

OWNER: Final = "kandev"
UNPRIVILEGED: Final = ("postgres", "nobody")
"""Users that a server may run as if the tests are root, which PostgreSQL refuses; the first that exists is used."""
SETTINGS: Final = {
    "autovacuum": "off",  # a test survives no power failure
    "fsync": "off",  # a test survives no power cut
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "unix_socket_directories": "",
}
DURABLE: Final = {name: SETTINGS[name] for name in ("listen_addresses", "max_connections", "unix_socket_directories")}
"""Otherwise PostgreSQL's defaults: committed data survives a power failure."""
_PR_SET_PDEATHSIG: Final = 1
_NUMBERS: Final = count(1)


def binaries() -> Path | None:
    """Return the directory of the newest installed server, on the search path or where Debian puts it."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    newest = max(found, key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0, default=None)
    return newest or (Path(on_path).resolve().parent if on_path else None)


class Server:
    """A server with one superuser; ``start`` may be called again after ``stop``."""

    def __init__(self, settings: Mapping[str, str] = SETTINGS, *, network: str = "") -> None:
        """``network``: another network than that of this machine whose members may connect, as ``10.0.0.0/8``."""
        self.settings = settings
        self._network = network
        self.home = Path(tempfile.mkdtemp(prefix="kandev-postgresql-", dir="/tmp"))
        self.password = os.urandom(16).hex()
        self.port = free_port()
        self._as = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self._initialise()

    def _initialise(self) -> None:
        secret = self.home / "password"
        secret.write_text(self.password)
        if self._as:
            shutil.chown(self.home, self._as["user"])
            shutil.chown(secret, self._as["user"])
        options = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        command = (_binary("initdb"), *options, f"--username={OWNER}", f"--pwfile={secret}", self.home / "data")
        subprocess.run(command, check=True, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, **self._as)
        if self._network:
            with (self.home / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self._network} scram-sha-256\n")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        command: tuple[str | Path, ...] = (
            _binary("postgres"),
            "-D",
            self.home / "data",
            "-p",
            str(self.port),
            *options,
        )
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_us,  # noqa: PLW1509 - nothing else runs yet
                **self._as,
            )
        self._process = process
        ready = (_binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "30")
        while subprocess.run(ready, check=False, env={}).returncode:
            if process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start: {(self.home / 'log').read_text()}")

    def stop(self) -> None:
        """Stop the server at once, closing every connection; committed data stays."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its data."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def url(self, name: str = "postgres") -> str:
        """Return ``KANDEV_DATABASE_URL`` for one of its databases."""
        return f"postgres://{OWNER}:{self.password}@127.0.0.1:{self.port}/{name}"

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        return new_database(self.url())


@contextmanager
def own_server() -> Iterator[Server]:
    """Yield a running server of a test's own, which it may stop and start."""
    made = Server()
    try:
        made.start()
        yield made
    finally:
        made.close()


def new_database(server: str) -> str:
    """Return the URL of a new, empty database on the server of another URL."""
    name = f"drill_{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return _beside(server, name)


def copy(source: str, to: str) -> None:
    """Copy the database ``source``, which is not in use, to ``to`` on the same server."""
    names = [sql.Identifier(urlsplit(url).path.strip("/")) for url in (to, source)]
    with psycopg.connect(_beside(source, "postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(names[0]))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))


def dump(url: str, file: Path) -> None:
    """Write a database to a file for ``restore``."""
    subprocess.run((_binary("pg_dump"), "--file", file, url), check=True, capture_output=True, env={})


def restore(file: Path, url: str) -> None:
    """Load a file written by ``dump``, maybe on another server, into an empty database."""
    command = (_binary("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "--single-transaction", "--file", file, url)
    subprocess.run(command, check=True, capture_output=True, env={})


def _beside(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@cache
def server() -> Server:
    """Return the server of this process, started on first use."""
    made = Server()
    atexit.register(made.close)
    made.start()
    return made


def _binary(name: str) -> Path:
    directory = binaries()
    if directory is None:
        raise RuntimeError("no PostgreSQL server is installed")
    return directory / name


def _unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next((known[name] for name in UNPRIVILEGED if name in known), None)
    if entry is None:
        raise RuntimeError(f"{getpass.getuser()} is root, and there is none of {', '.join(UNPRIVILEGED)}")
    return {"user": entry.pw_name, "group": entry.pw_gid, "extra_groups": []}


def end_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))
