"""What an executor on another machine may be told: ``Executor.config``, checked."""

from __future__ import annotations

import ipaddress
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from executors_app.errors import RuntimeUnavailable

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PIN: Final = re.compile(r"(sha256:)?([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class HostConfig:
    """``Executor.config`` of a remote executor."""

    url: str
    """``https://build1.example:8443``; http for the loopback alone."""
    token_file: str
    """Name of a file in ``hosts/`` of the data directory, 0600: the database never holds the token."""
    fingerprint: str = ""
    """SHA-256 of the certificate that is trusted, and no other; empty: what this machine trusts."""
    repositories: Mapping[str, str] = field(default_factory=dict)
    """By a repository's path here, its path or URL there; what is not named has the same path."""

    def url_of(self, execution_id: str) -> str:
        """Where the agentctl of an execution is spoken to."""
        return f"{self.url.rstrip('/')}/instances/{execution_id}"

    def token(self, directory: Path) -> str:
        """What the host wants as bearer; raises RuntimeUnavailable."""
        path, named = directory / self.token_file, f"{directory.name}/{self.token_file}"
        try:
            if path.stat().st_mode & _OTHERS:
                raise RuntimeUnavailable(f"The token file {named} can be read by others: chmod 600.")
            return path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise RuntimeUnavailable(f"The token file {named} cannot be read: {type(error).__name__}.") from error


def read_config(config: Mapping[str, Any]) -> HostConfig:
    """The settings; ValueError with one clear sentence for anything that is none."""
    known = [one.name for one in fields(HostConfig)]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"remote knows no {', '.join(unknown)}; it knows {', '.join(known)}.")
    if missing := [name for name in ("url", "token_file") if not config.get(name)]:
        raise ValueError(f"remote wants {' and '.join(missing)}.")
    read = HostConfig(**config)
    _check_url(read.url)
    if not isinstance(read.token_file, str) or not _FILE_NAME.fullmatch(read.token_file):
        raise ValueError("token_file wants the name of a file in hosts/ of the data directory, without a folder.")
    if read.fingerprint and not (isinstance(read.fingerprint, str) and _PIN.fullmatch(read.fingerprint)):
        raise ValueError("fingerprint wants 64 hexadecimal digits: the SHA-256 of the host's certificate.")
    pairs = read.repositories.items() if isinstance(read.repositories, Mapping) else [(None, None)]
    if not all(isinstance(one, str) and one for pair in pairs for one in pair):
        raise ValueError("repositories wants an object: by a path here, the path or URL there.")
    return read


def _check_url(url: Any) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.scheme not in {"http", "https"} or not str(url).isprintable() or " " in url:
        raise ValueError("url wants an address such as https://build1.example:8443.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("url wants no user, password, query or fragment.")
    if parts.scheme == "http" and not _is_loopback(parts):
        raise ValueError("url wants https for another machine: the token would be read on the way.")


def _is_loopback(parts: SplitResult) -> bool:
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"
