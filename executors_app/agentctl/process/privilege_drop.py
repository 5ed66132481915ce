"""agentctl and what it starts as two users, where agentctl is started as root in a container (rule 28).

Files are the worktree's owner's, whoever writes them, so agentctl has that user's id as its *effective* one.
Its real and saved ids are another's: the kernel lets none of the owner's processes signal it, trace it or read
its memory. Its children become the owner's wholly, and leave the group that alone may enter the directory which
the state is in. What root had is given up for good, but for the right to leave that group.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any, Final

AGENTCTL_UID: Final = 61817
"""User and group of agentctl itself: a number that is hardly anybody's. The image knows the group by it."""
_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 8, 24, 38
_SETGID, _SETUID, _SETPCAP = 6, 7, 8
_VERSION_3: Final = 0x20080522


def drop_privileges(spec: str) -> None:
    """Become agentctl for the owner ``UID:GID``; ValueError, PermissionError. Before any thread is started."""
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", spec)
    if found is None:
        raise ValueError(f"--run-as: {spec!r} is not UID:GID")
    uid, gid = int(found[1]), int(found[2])
    if os.getuid() != 0 or uid == AGENTCTL_UID:
        raise ValueError("--run-as: only root can become another, and not agentctl's own user")
    for capability in (_SETGID, _SETUID, _SETPCAP):
        _prctl(_PR_CAPBSET_DROP, capability)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.setgroups([AGENTCTL_UID])
    os.setresgid(gid, gid, gid)
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(AGENTCTL_UID, uid, AGENTCTL_UID)
    _keep_capability(_SETGID)


def child_user_arguments() -> dict[str, Any]:
    """Arguments of ``subprocess.Popen`` for a child that is wholly the owner's; none where we are one user."""
    if os.getuid() == os.geteuid():
        return {}
    return {"user": os.geteuid(), "group": os.getegid(), "extra_groups": []}


def become_owner() -> None:
    """In a forked child: be wholly the owner, without group, capability or way back. Raises OSError."""
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
    """Of all that the kernel lets root do, keep one thing or nothing; a child that is another loses that too."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    bit = 0 if capability is None else 1 << capability
    sets = (ctypes.c_uint32 * 6)(bit, bit, 0, 0, 0, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, sets) != 0:
        number = ctypes.get_errno()
        raise PermissionError(number, f"capset: {os.strerror(number)}")
