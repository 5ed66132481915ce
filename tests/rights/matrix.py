"""Who may do what: one row for each address and method, by role.

An address without a row fails ``test_matrix``. To add one: find its route in the message, and put a row
under the methods that it has, with the status that each role gets (the helpers below name the usual ones).
``staff`` is in no team.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.rights.world import ROLES

LOGIN = 302
"""Pages send nobody to the login page."""


@dataclass(frozen=True)
class Row:
    """The statuses in the order of ``ROLES``, and what is asked with which variables of the address."""

    statuses: tuple[int, int, int, int, int]
    body: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""

    def expected(self) -> dict[str, int]:
        """By role."""
        return dict(zip(ROLES, self.statuses, strict=True))

    def at(self, **names: Any) -> Row:
        """The same with other variables in its address."""
        return Row(self.statuses, self.body, names, self.query)

    def asking(self, query: str) -> Row:
        """The same with a query."""
        return Row(self.statuses, self.body, self.names, query)


def same(status: int) -> Row:
    """Everybody alike."""
    return Row((status,) * 5)


def known(status: int = 200) -> Row:
    """Whoever is logged in; what is listed is the own teams'."""
    return Row((401, status, status, status, status))


def reads(status: int = 200) -> Row:
    """The team reads; for others it is not there."""
    return Row((401, 404, status, status, 404))


def writes(status: int, **body: Any) -> Row:
    """The team's members write, its viewers do not; for others it is not there."""
    return Row((401, 404, 403, status, 404), body)


def staff_writes(status: int, **body: Any) -> Row:
    """Staff alone."""
    return Row((401, 403, 403, 403, status), body)


def page(status: int = 200) -> Row:
    """A page for whoever is logged in."""
    return Row((LOGIN, status, status, status, status))


def page_reads(status: int = 200) -> Row:
    """A page of a team's."""
    return Row((LOGIN, 404, status, status, 404))


def page_writes(status: int, **body: Any) -> Row:
    """A form of a team's."""
    return Row((LOGIN, 404, 403, status, 404), body)


Methods = Mapping[str, Row]
_TASK: Final = "api/v1/tasks/<uuid:task_id>/"
_SESSION: Final = _TASK + "sessions/<uuid:session_id>/"
_PROMPT: Final = _SESSION + "prompts/<name:message_id>/"

API: Final[Mapping[str, Methods]] = {
    "api/v1/tasks/": {
        "get": known(),
        "post": Row((401, 400, 403, 201, 400), {"title": "A task", "team": "team"}),
    },
    _TASK: {"get": reads(), "patch": writes(200, title="Another")},
    _TASK + "archive/": {"post": writes(200)},
    _TASK + "done/": {"post": writes(200)},
    _TASK + "sessions/": {
        "get": reads(),
        "post": writes(201, agent_profile="{profile}", executor="{executor}"),
    },
    _SESSION: {"get": reads(), "delete": writes(409)},
    _SESSION + "status/": {"get": reads()},
    _SESSION + "resume/": {"post": writes(202)},
    _SESSION + "prompt/": {"post": writes(202, message_id="m", text="Go on")},
    _SESSION + "cancel/": {"post": writes(202)},
    _SESSION + "stop/": {"post": writes(202)},
    _SESSION + "close/": {"post": writes(202, **{"as": "completed"})},
    _SESSION + "messages/": {"get": reads()},
    _SESSION + "events/": {"get": reads()},
    _SESSION + "events/stream": {"get": reads()},
    _SESSION + "receipts/": {"get": reads()},
    _SESSION + "runs/": {"get": reads()},
    _SESSION + "files/": {"get": reads(503)},
    _SESSION + "files/content/": {
        "get": reads(503).asking("path=x"),
        "put": Row((401, 404, 403, 403, 404), {"content": "x"}, query="path=x"),
    },
    _SESSION + "git/status/": {"get": reads(503)},
    _SESSION + "git/diff/": {"get": reads(503)},
    _SESSION + "git/log/": {"get": reads(503)},
    _SESSION + "git/commit/": {"post": writes(503, message="Go on")},
    _SESSION + "permissions/": {"get": reads()},
    _SESSION + "permissions/<name:permission_id>/": {
        "post": writes(202, option_id="allow", resume_token="{token}"),
    },
    _SESSION + "waits/": {"post": writes(409, kind="external")},
    "api/v1/runs/resume/": {"post": Row((403,) * 5, {"resume_token": "none"})},
    _SESSION + "prompts/": {"get": reads()},
    _PROMPT: {"delete": writes(204).at(message_id="queued")},
    _PROMPT + "resend/": {"post": writes(202)},
    _PROMPT + "continue/": {"post": writes(202).at(message_id="interrupted")},
    _PROMPT + "dismiss/": {"post": writes(200)},
    "api/v1/repositories/": {"get": known(), "post": staff_writes(400)},
    "api/v1/agent-types/": {"get": known()},
    "api/v1/agent-profiles/": {"get": known(), "post": staff_writes(201, name="x", agent_type="demo")},
    "api/v1/executors/": {"get": known(), "post": staff_writes(201, name="x", runtime="local_standalone")},
    "api/v1/executors/running/": {"get": known()},
    "api/v1/executors/<uuid:executor_id>/probe/": {"post": Row((401, 200, 403, 200, 200))},
    "api/v1/sweeps/": {"get": known(), "post": staff_writes(202)},
    "api/v1/sweeps/<uuid:sweep_id>/": {"get": known()},
    "api/v1/sweeps/requests/<uuid:request_id>/": {"get": known()},
    "api/v1/schema/": {"get": known()},
    "api/v1/docs/": {"get": known()},
    "api/v1/": {"get": same(404), "post": same(404)},
}

_PAGE: Final = "tasks/<uuid:task_id>/"
_SESSION_PAGE: Final = _PAGE + "sessions/<uuid:session_id>/"

PAGES: Final[Mapping[str, Methods]] = {
    "": {"get": page(), "post": Row((LOGIN, 422, 403, 422, 403), {"title": "A task"})},
    "live/": {"get": page(), "post": page(405)},
    "executors/": {"get": page(), "post": page(405)},
    "executors/live/": {"get": page(), "post": page(405)},
    "sweeps/": {"get": page(), "post": Row((LOGIN, 403, 403, 403, 302))},
    "sweeps/live/": {"get": page(), "post": page(405)},
    "sweeps/<uuid:sweep_id>/": {"get": page(), "post": page(405)},
    "login/": dict.fromkeys(("get", "post", "put"), Row((200, 302, 302, 302, 302))),
    "login/<str:secret>/": {"get": same(410), "post": same(410)},
    "logout/": {"post": same(302)},
    _PAGE: {"get": page_reads(), "post": page_writes(422, prompt="Go on")},
    _PAGE + "live/": {"get": page_reads(), "post": page(405)},
    _PAGE + "<str:what>/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE: {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "live/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "prompt/": {"get": page(405), "post": page_writes(302, message_id="m", text="Go on")},
    _SESSION_PAGE + "waits/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE + "waits/rotate/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE + "<str:action>/": {"get": page(405), "post": page_writes(302)},
    "healthz": {"get": same(200), "post": same(200)},
    "readyz": {"get": same(503), "post": same(503)},
}
