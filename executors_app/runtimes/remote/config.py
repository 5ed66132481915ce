"""The settings of a remote executor, checked."""

from __future__ import annotations

import ipaddress
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from executors_app.wire.errors import RuntimeUnavailable

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PIN: Final = re.compile(r"(sha256:)?([0-9a-fA-F]{2}:?){31}[0-9a-fA-F]{2}")
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class HostConfig:
    """The ``Executor.config`` of a remote executor."""

    url: str
    """For example ``https://build1.example:8443``; http only for the loopback."""
    token_file: str
    """Name of a file in ``hosts/`` of the data directory, 0600: the database never holds the token."""
    fingerprint: str = ""
    """SHA-256 of the only trusted certificate; empty: those that this machine trusts."""
    repositories: Mapping[str, str] = field(default_factory=dict)
    """A repository's path or URL on the host, by its path here; repositories that are missing have the same path."""

    def url_of(self, execution_id: str) -> str:
        """Return the URL of an execution's agentctl."""
        return f"{self.url.rstrip('/')}/instances/{execution_id}"

    def token(self, directory: Path) -> str:
        """Return the host's bearer token; raises RuntimeUnavailable."""
        path, named = directory / self.token_file, f"{directory.name}/{self.token_file}"
        try:
            if path.stat().st_mode & _GROUP_AND_OTHERS:
                raise RuntimeUnavailable(f"Other users can read the token file {named}. Run chmod 600 on it.")
            return path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise RuntimeUnavailable(f"The token file {named} cannot be read: {type(error).__name__}.") from error


def read_host_config(config: Mapping[str, Any]) -> HostConfig:
    """Return the checked settings; raises ValueError with one clear sentence."""
    known = [one.name for one in fields(HostConfig)]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"remote has no setting {', '.join(unknown)}. Its settings are {', '.join(known)}.")
    if missing := [name for name in ("url", "token_file") if not config.get(name)]:
        raise ValueError(f"remote requires {' and '.join(missing)}.")
    read = HostConfig(**config)
    _check_url(read.url)
    if not isinstance(read.token_file, str) or not _FILE_NAME.fullmatch(read.token_file):
        raise ValueError("token_file must be the name of a file in hosts/ of the data directory, without a folder.")
    if read.fingerprint and not (isinstance(read.fingerprint, str) and _PIN.fullmatch(read.fingerprint)):
        raise ValueError("fingerprint must be 64 hexadecimal digits: the SHA-256 of the host's certificate.")
    pairs = read.repositories.items() if isinstance(read.repositories, Mapping) else [(None, None)]
    if not all(isinstance(one, str) and one for pair in pairs for one in pair):
        raise ValueError("repositories must be an object that maps each path here to the path or URL there.")
    return read


def _check_url(url: Any) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.scheme not in {"http", "https"} or not str(url).isprintable() or " " in url:
        raise ValueError("url must be an address such as https://build1.example:8443.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("url must not contain a user, password, query or fragment.")
    if parts.scheme == "http" and not _is_loopback(parts):
        raise ValueError("url must use https for another machine: over http the token could be read on the way.")


def _is_loopback(parts: SplitResult) -> bool:
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return parts.hostname == "localhost"
