"""The address of a Docker engine, and the files that a connection to it needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from executors_app.wire.errors import RuntimeUnavailable

DEFAULT_DOCKER_HOST: Final = "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of one engine; equal addresses are the same engine. Paths are files on this machine."""

    url: str = ""
    """``unix:///path``, ``tcp://host:port``, ``ssh://[user@]host[:port][/path/of/socket]``; empty: the default."""
    tls_ca: str = ""
    """File with the CA certificate that signed the engine's certificate."""
    tls_cert: str = ""
    tls_key: str = ""
    """Our own certificate, as the engine's client."""
    ssh_key: str = ""
    """Private key; empty: the keys that ssh uses by default."""
    ssh_known_hosts: str = ""
    """File of known hosts; empty: ssh's default files. A host that is not in them is always rejected."""

    @property
    def parts(self) -> SplitResult:
        """The parsed URL."""
        return urlsplit(self.url or DEFAULT_DOCKER_HOST)

    @property
    def scheme(self) -> str:
        """``unix``, ``tcp`` or ``ssh``."""
        return self.parts.scheme

    @property
    def is_ours(self) -> bool:
        """Whether it is a socket of this machine."""
        return self.scheme in ("unix", "http+unix")

    def ssh_command(self, timeout: float) -> list[str]:
        """Return the argv of a process whose standard input and output are a connection to the engine."""
        parts = self.parts
        command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        command += ["-o", f"ConnectTimeout={max(1, round(timeout))}"]
        if self.ssh_key:
            command += ["-i", self.ssh_key, "-o", "IdentitiesOnly=yes"]
        if self.ssh_known_hosts:
            command += ["-o", f"UserKnownHostsFile={self.ssh_known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"]
        if parts.port:
            command += ["-p", str(parts.port)]
        if parts.username:
            command += ["-l", parts.username]
        command += ["--", parts.hostname or "", "docker"]
        if parts.path.strip("/"):
            command += ["--host", f"unix://{parts.path}"]
        return [*command, "system", "dial-stdio"]

    def check_files(self) -> None:
        """Raise RuntimeUnavailable if a file cannot be read, or a key is readable by other users."""
        for path in filter(None, (self.tls_ca, self.tls_cert, self.tls_key, self.ssh_key, self.ssh_known_hosts)):
            if problem := file_problem(path, private=path in (self.tls_key, self.ssh_key)):
                raise RuntimeUnavailable(problem, reason="engine")


def file_problem(path: str, *, private: bool) -> str:
    """Return why a file cannot be used, as a sentence; empty if it can."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        return f"{path} is not a readable file."
    if private and mode & 0o077:
        return f"{path} is a private key that other users can read. Run chmod 600 on it."
    return ""
