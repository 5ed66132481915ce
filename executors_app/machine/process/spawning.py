"""What a child process gets: an environment from an allow-list, so that no secret of ours reaches an agent, and a user.

The only reader of ``os.environ`` in agentctl. The control plane builds agentctl's own environment here, too.

If agentctl is started as root in a container, it and its children run as two users. agentctl's *effective* user is the
owner of the worktree, so that all files belong to that owner. Its real and saved user is another one, so the kernel
lets no process of the owner signal it, trace it or read its memory. Its children run entirely as the owner, and leave
the only group that can enter the directory with agentctl's state. All other rights of root are given up for good,
except the right to leave that group. The owner is never root, which owns the image's files, and agentctl is not
dumpable: a fork of it that becomes the owner still has a copy of its memory, which no process of the owner can read.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executors_app.machine import crash_points
from executors_app.wire.protocol import EXECUTION_MARKER

AGENT_MARKER: Final = "KANDEV_AGENT_LAUNCH"
"""Marks the processes of one agent, unlike the shells and git calls of its agentctl."""
SHELL_MARKER: Final = "KANDEV_SHELL"
"""Marks the processes of one shell of the workspace."""
MARKERS: Final = frozenset({EXECUTION_MARKER, AGENT_MARKER, SHELL_MARKER})
"""Environment variables that mark our processes. They are not settings, so an unknown-setting check skips them."""

SESSION_VARIABLE: Final = "KANDEV_SESSION_ID"
NO_LEFTOVERS_VARIABLE: Final = "KANDEV_NO_LEFTOVERS"
"""Set by whoever starts agentctl under the lock of starts, and has found no process of its execution."""

CRASH_AT_VARIABLE: Final = "KANDEV_CRASH_AT"
CRASH_DIR_VARIABLE: Final = "KANDEV_CRASH_DIR"
"""For tests: these two name the crash point at which agentctl kills itself, and the directory of its mark."""

_PROXIES: Final = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_ALLOWED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ", "TMPDIR"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *_PROXIES,
        *(name.upper() for name in _PROXIES),
    }
)
_ALLOWED_PREFIX: Final = "LC_"

AGENTCTL_UID: Final = 61817
"""User and group of agentctl: an id that is unlikely to be in use. The image creates its directories with it."""
_VERSION_3: Final = 0x20080522
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 8, 24, 38
_SETGID, _SETUID, _SETPCAP = 6, 7, 8


def build_environment(extra: Mapping[str, str], marker: Mapping[str, str]) -> dict[str, str]:
    """Build the environment of a child: the allowed part of ours, overridden by ``extra``, then by ``marker``."""
    return {**inherited_environment(), **extra, **marker}


def inherited_environment() -> dict[str, str]:
    """Return the allowed part of our own environment: paths, locale, proxies and certificates, no secrets."""
    return {name: value for name, value in os.environ.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIX)}


def replace_environment(environment: Mapping[str, str]) -> None:
    """Replace our own environment, in a process that was forked."""
    os.environ.clear()
    os.environ.update(environment)


def may_have_leftovers() -> bool:
    """Whether processes of an earlier agentctl of our execution may live."""
    return NO_LEFTOVERS_VARIABLE not in os.environ


def arm_crash_point() -> None:
    """Arm the crash point that our environment names, if any; raises ValueError for an unknown one."""
    spec = os.environ.get(CRASH_AT_VARIABLE)
    if spec:
        crash_points.arm(spec, os.environ.get(CRASH_DIR_VARIABLE) or Path.cwd(), os.environ.get(SESSION_VARIABLE, ""))


def drop_privileges(spec: str) -> None:
    """Drop root's rights and work for the owner ``UID:GID``; call it before any thread or child starts.

    Raises ValueError for an owner that is root or agentctl's own user, PermissionError.
    """
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", spec)
    if found is None:
        raise ValueError(f"--run-as: {spec!r} is not UID:GID")
    uid, gid = int(found[1]), int(found[2])
    if os.getuid() != 0 or uid in (0, AGENTCTL_UID):
        raise ValueError("--run-as needs root, and cannot name root or agentctl's own user")
    # The order matters: the bounding set and the groups can only be changed as root, and KEEPCAPS must be set before
    # the change of users, which would otherwise clear the one capability that is kept.
    for capability in (_SETGID, _SETUID, _SETPCAP):
        _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.setgroups([AGENTCTL_UID])
    os.setresgid(gid, gid, gid)
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(AGENTCTL_UID, uid, AGENTCTL_UID)
    _keep_capability(_SETGID)
    # Last, because each change of users sets it to the system's own choice (fs.suid_dumpable).
    _prctl(_PR_SET_DUMPABLE, 0)


def child_user_arguments() -> dict[str, Any]:
    """Return ``subprocess.Popen`` arguments for a child that runs as the owner; empty if we are one user."""
    if os.getuid() == os.geteuid():
        return {}
    return {"user": os.geteuid(), "group": os.getegid(), "extra_groups": []}


def become_owner() -> None:
    """Become the owner for good, without groups or capabilities; for a forked child. Raises OSError."""
    uid, gid = os.geteuid(), os.getegid()
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _keep_capability(None)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise PermissionError(number, f"prctl {option}: {os.strerror(number)}")


def _keep_capability(capability: int | None) -> None:
    """Keep one capability, or none; children that run as another user lose it too."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    bit = 0
    if capability is not None:
        bit = 1 << capability
    sets = (ctypes.c_uint32 * 6)(bit, bit, 0, 0, 0, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, sets) != 0:
        number = ctypes.get_errno()
        raise PermissionError(number, f"capset: {os.strerror(number)}")
