"""How a Docker engine is reached: a socket of this machine, TLS, or ssh."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from executors_app.errors import RuntimeUnavailable

USUAL: Final = "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """One engine; equal addresses are one engine. Paths are of files on this machine."""

    url: str = ""
    """``unix:///path``, ``tcp://host:port``, ``ssh://[user@]host[:port][/path/of/socket]``; empty: the usual socket."""
    tls_ca: str = ""
    """What signed the engine's certificate."""
    tls_cert: str = ""
    tls_key: str = ""
    """Our own certificate, as the engine's client."""
    ssh_key: str = ""
    """Private key; empty: those that ssh takes by itself."""
    ssh_known_hosts: str = ""
    """Empty: those that ssh knows by itself; a host that is not known is refused in any case."""

    @property
    def parts(self) -> SplitResult:
        """The URL, taken apart."""
        return urlsplit(self.url or USUAL)

    @property
    def scheme(self) -> str:
        """``unix``, ``tcp`` or ``ssh``."""
        return self.parts.scheme

    @property
    def is_ours(self) -> bool:
        """It is reached by a socket of this machine."""
        return self.scheme in ("unix", "http+unix")

    def ssh_command(self, timeout: float) -> list[str]:
        """The words of a process that is a connection to the engine, by its standard input and output."""
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
        socket = ["--host", f"unix://{parts.path}"] if parts.path.strip("/") else []
        return [*command, "--", parts.hostname or "", "docker", *socket, "system", "dial-stdio"]

    def check_files(self) -> None:
        """RuntimeUnavailable where a file that is named cannot be read, or a key is open to others."""
        for path in filter(None, (self.tls_ca, self.tls_cert, self.tls_key, self.ssh_key, self.ssh_known_hosts)):
            if problem := problem_of(path, private=path in (self.tls_key, self.ssh_key)):
                raise RuntimeUnavailable(problem, reason="engine")


def problem_of(path: str, *, private: bool) -> str:
    """Why a file cannot be used, as a sentence; empty if it can."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        return f"{path} is no file that can be read."
    if private and mode & 0o077:
        return f"{path} is a private key that others can read: chmod 600 it."
    return ""
