"""What a workspace is given of its team's repository beside commits: read as data, bounded, without credentials."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from executors_app import plain_files

_EXCLUDE_LIMIT: Final = 64 << 10
_HOOK: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_HOOKS: Final = 64
_HOOK_LIMIT: Final = 256 << 10
_HOOKS_TOTAL: Final = 1 << 20
_REMOTE: Final = re.compile(r"remote\.([A-Za-z0-9][A-Za-z0-9_-]{0,99})\.url")
_REMOTES: Final = 100
_URL_LIMIT: Final = 2048
_SCP: Final = re.compile(r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9][A-Za-z0-9._-]*):(?!/?/)[^\s\\]+")
_USER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Carried:
    """Of a team's repository, for a workspace's own."""

    identity: Mapping[str, str] = field(default_factory=dict)
    """``name`` and ``email``, as far as they are configured."""
    remotes: Mapping[str, str] = field(default_factory=dict)
    """URLs by the remote's name."""
    exclude: str = ""
    """The text of ``info/exclude``."""
    hooks: Mapping[str, bytes] = field(default_factory=dict)
    """The hooks that are not samples; they run nowhere but in a sandbox."""


def read(common: Path, config: Mapping[str, str]) -> Carried:
    """All of it; ``config`` has the repository's own configuration, the last value of each key."""
    exclude = plain_files.read_file(common / "info" / "exclude", _EXCLUDE_LIMIT) or b""
    return Carried(
        identity={name: text for name in ("name", "email") if (text := _plain(config.get(f"user.{name}", "")))},
        remotes=dict(list(_remotes(config))[:_REMOTES]),
        exclude=exclude.decode("utf-8", "replace"),
        hooks=dict(_hooks(common / "hooks")),
    )


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip()[:200]


def _remotes(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        name = _REMOTE.fullmatch(key)
        if name and (url := without_credentials(value)):
            yield name[1], url


def without_credentials(url: str) -> str:
    """An http, ssh or git URL without password, token or query; empty for any other.

    Of ssh the user's name stays, without which it would be another address.
    """
    if not url.isprintable() or len(url) > _URL_LIMIT or any(letter.isspace() for letter in url):
        return ""
    if short := _SCP.fullmatch(url):
        return "" if short[2] == "ext" else url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https", "ssh", "git"} or not host or host.startswith("-"):
        return ""
    place = f"[{host}]" if ":" in host else host
    user = f"{parts.username}@" if parts.scheme == "ssh" and _USER.fullmatch(parts.username or "") else ""
    return urlunsplit((parts.scheme, user + place + (f":{port}" if port else ""), parts.path, "", ""))


def _hooks(folder: Path) -> Iterator[tuple[str, bytes]]:
    left = _HOOKS_TOTAL
    for entry in sorted(plain_files.entries(folder, _HOOKS * 4), key=lambda entry: entry.name)[:_HOOKS]:
        if not _HOOK.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
            continue
        if not entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR:
            continue
        text = plain_files.read_file(Path(entry.path), _HOOK_LIMIT + 1, follow=False)
        if text is not None and len(text) <= min(_HOOK_LIMIT, left):
            left -= len(text)
            yield entry.name, text
