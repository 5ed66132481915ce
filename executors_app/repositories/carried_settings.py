"""Settings of a team's repository that a workspace gets in addition to commits."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from executors_app.machine.untrusted_files import Directory
from executors_app.wire.exhaustion import raise_if_exhausted

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
class CarriedSettings:
    """Settings of a team's repository that are copied to a workspace's repository."""

    identity: Mapping[str, str] = field(default_factory=dict)
    """``name`` and ``email``, as far as they are configured."""
    remotes: Mapping[str, str] = field(default_factory=dict)
    """URLs by the remote's name."""
    exclude: str = ""
    """The text of ``info/exclude``."""
    hooks: Mapping[str, bytes] = field(default_factory=dict)
    """The hooks, without git's samples; they run only in a sandbox."""


def read_carried_settings(repository: Directory, config: Mapping[str, str]) -> CarriedSettings:
    """Return the settings; ``config`` is the repository's own configuration, the last value of each key.

    They reach every sandbox, so no link is followed: it could lead to any file that Kandev can read.
    """
    exclude = repository.read("info/exclude", _EXCLUDE_LIMIT) or b""
    identity = {name: _plain(config.get(f"user.{name}", "")) for name in ("name", "email")}
    return CarriedSettings(
        identity={name: text for name, text in identity.items() if text},
        remotes=dict(list(_remotes(config))[:_REMOTES]),
        exclude=exclude.decode("utf-8", "replace"),
        hooks=dict(_hooks(repository)),
    )


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() and letter not in "<>").strip()[:200]


def _remotes(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        name = _REMOTE.fullmatch(key)
        if name and (url := strip_credentials(value)):
            yield name[1], url


def strip_credentials(url: str) -> str:
    """Return an http, ssh or git URL without password, token and query; empty for any other URL.

    The user's name of an ssh URL stays, because it is part of the address.
    """
    if not url.isprintable() or len(url) > _URL_LIMIT or any(letter.isspace() for letter in url):
        return ""
    if short := _SCP.fullmatch(url):
        if short[2] == "ext":  # git would run the program that such a URL names
            return ""
        return url
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https", "ssh", "git"} or not host or host.startswith("-"):
        return ""
    place = host
    if ":" in host:
        place = f"[{host}]"
    if port:
        place += f":{port}"
    if parts.scheme == "ssh" and _USER.fullmatch(parts.username or ""):
        place = f"{parts.username}@{place}"
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


def _hooks(repository: Directory) -> Iterator[tuple[str, bytes]]:
    left = _HOOKS_TOTAL
    entries = sorted(repository.entries("hooks", _HOOKS * 4), key=lambda entry: entry.name)
    for entry in entries[:_HOOKS]:
        if not _HOOK.fullmatch(entry.name) or not entry.is_file:
            continue
        text = _read_program(repository, f"hooks/{entry.name}")
        if text is not None and len(text) <= min(_HOOK_LIMIT, left):
            left -= len(text)
            yield entry.name, text


def _read_program(repository: Directory, name: str) -> bytes | None:
    """Return an executable file, at most one byte more than a hook may have; None if there is none."""
    try:
        file = repository.open_file(name)
    except OSError as error:
        raise_if_exhausted(error)
        return None
    with os.fdopen(file, "rb") as opened:
        if not os.fstat(file).st_mode & stat.S_IXUSR:
            return None
        return opened.read(_HOOK_LIMIT + 1)
