"""An ssh server for tests, with its own keys and port; it ends with the test."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path

from tests.docker.remote_engine import ADDRESS
from tests.network import free_port
from tests.waiting import PATIENCE, eventually

SEARCHED = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))


class SshServer:
    """An ssh server that lets the holder of ``key`` in as the user of these tests."""

    def __init__(self, directory: Path):
        directory.mkdir(mode=0o700)
        self.key, host_key = directory / "key", directory / "host-key"
        for path in (self.key, host_key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        self.port = free_port(ADDRESS)
        self.known_hosts = directory / "known_hosts"
        self.known_hosts.write_text(f"[{ADDRESS}]:{self.port} {host_key.with_suffix('.pub').read_text()}")
        allowed = directory / "allowed"
        shutil.copy(self.key.with_suffix(".pub"), allowed)
        settings = {
            "ListenAddress": f"{ADDRESS}:{self.port}",
            "HostKey": str(host_key),
            "AuthorizedKeysFile": str(allowed),
            "PidFile": str(directory / "pid"),
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
        }
        config = directory / "config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        Path("/run/sshd").mkdir(exist_ok=True)
        program = str(shutil.which("sshd", path=SEARCHED))
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen([program, "-D", "-f", str(config)], stdin=quiet, stdout=quiet, stderr=quiet)
        eventually(self._listens, timeout=60, describe="the ssh server listens")

    def url(self, path: str) -> str:
        """Return the URL of an engine whose socket is at ``path``."""
        return f"ssh://{getpass.getuser()}@{ADDRESS}:{self.port}{path}"

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(PATIENCE)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((ADDRESS, self.port)) == 0
