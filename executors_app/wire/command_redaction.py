"""Remove secrets from command lines that are shown to people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

MARK: Final = "[redacted]"
READ_LENGTH: Final = 800
"""Characters of a command line that are searched before it is cut, so that no half of a secret remains."""
_MIN_LENGTH: Final = 8
"""Characters of a value that counts as a secret; shorter ones are too common."""
_SECRET_NAME: Final = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_NAMES: Final = r"(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|(?<=_)pwd)[\w-]{0,40}"
_QUOTED: Final = r"'[^']*(?:'|$)|\"[^\"]*(?:\"|$)"
_OPTION: Final = re.compile(rf"(?P<name>(?<!\S)--?[\w-]{{0,40}}?{_NAMES}\s)(?:{_QUOTED}|\S+)", re.IGNORECASE)
_ASSIGNED: Final = re.compile(rf"(?P<name>{_NAMES}[\"']?[=:]\s?)(?:{_QUOTED}|[^\s&]+)", re.IGNORECASE)
_CLIENT: Final = re.compile(r"\b(?:curl|wget|https?)\b(?!:)")
"""A program whose option ``-u`` has a user and a password; that of others, as ``docker run -u 1000:1000``, has not."""
_CREDENTIALS: Final = re.compile(
    r"(?P<name>(?<!\S)(?:-[ua]|--auth|--(?:proxy-)?user)[\s=]?['\"]?[^\s:'\"]{1,100}:)[^\s'\"]+"
)
_AUTHORIZATION: Final = re.compile(r"(?P<name>authorization:\s*(?:\w+\s+)?|bearer\s+)\S+", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"(?P<name>://[^\s/:@]{0,200}:)[^\s/@]+(?=@)")
_KNOWN_FORM: Final = re.compile(
    r"(?P<name>)\b(?:sk|gh[opsur]|github_pat|glpat|npm|hf|xox[abp])[-_][\w-]{12,}|\bAKIA[A-Z0-9]{16}\b"
)


def redact_command(command: str, values: Iterable[str] = (), limit: int = 200) -> str:
    """Return at most ``limit`` characters of a command line that was read up to ``READ_LENGTH``.

    They contain none of ``values``, and nothing that follows a name as secrets usually have.
    """
    if len(command) >= READ_LENGTH:  # its last word may be half of a secret
        command = command[:READ_LENGTH].rpartition(" ")[0] or command[:limit]
    for value in sorted(values, key=len, reverse=True):
        command = command.replace(value, MARK)
    patterns = [_AUTHORIZATION, _OPTION, _ASSIGNED, _ADDRESS, _KNOWN_FORM]
    if _CLIENT.search(command):
        patterns.append(_CREDENTIALS)
    for pattern in patterns:
        command = pattern.sub(lambda found: f"{found['name'] or ''}{MARK}", command)
    return command[:limit]


def secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values of variables that are secrets by their names."""
    return frozenset(
        value for name, value in environment.items() if _SECRET_NAME.search(name) and len(value) >= _MIN_LENGTH
    )
