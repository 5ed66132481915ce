"""Access to sockets and their actions, by role.

A socket or an action without a row fails ``test_socket_matrix``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.rights.world import ROLES

HELLO: Final = 0
"""The socket stays open."""

SOCKETS: Final[Mapping[str, tuple[int, ...]]] = {
    r"^ws/sessions/(?P<key>[^/]+)/$": (4401, 4404, HELLO, HELLO, 4404),
    r"^ws/sessions/(?P<key>[^/]+)/shell/$": (4401, 4404, 4403, 4403, 4404),
    r"^ws/tasks/(?P<key>[^/]+)/$": (4401, 4404, HELLO, HELLO, 4404),
    r"": (4401, 4404, 4404, 4404, 4404),
}
"""Close codes in the order of ``ROLES``."""

READS: Final = {"viewer": "ok", "member": "ok"}
WRITES: Final = {"viewer": "permission_denied", "member": "ok"}

ACTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "ping": READS,
    "task.session.status": READS,
    "task.session.resume": WRITES,
    "task.session.prompt": WRITES,
    "task.session.cancel": WRITES,
    "task.session.permission.respond": WRITES,
    "task.session.presence": READS,
}
"""``ok`` or the error code, for roles that can open the socket."""

PAYLOADS: Final[Mapping[str, Mapping[str, str | bool]]] = {
    "task.session.prompt": {"message_id": "m", "text": "Go on"},
    "task.session.presence": {"here": True},
    "task.session.permission.respond": {
        "permission_id": "permission-1",
        "option_id": "allow",
        "resume_token": "{token}",
    },
}

assert all(len(codes) == len(ROLES) for codes in SOCKETS.values())
