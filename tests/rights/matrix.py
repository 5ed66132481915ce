"""Access by role: one row for each address and method.

An address without a row fails ``test_matrix``. To add one, find its route in the message, and add a row for each of its
methods with the status for each role (the helpers below name the usual ones). ``staff`` is in no team.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.rights.world import ROLES

LOGIN = 302
"""The status with which pages redirect anonymous users to the login page."""


@dataclass(frozen=True)
class Row:
    """The statuses in the order of ``ROLES``, and the request: body, URL variables and query."""

    statuses: tuple[int, int, int, int, int]
    body: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)
    query: str = ""

    def expected(self) -> dict[str, int]:
        """Return the expected status by role."""
        return dict(zip(ROLES, self.statuses, strict=True))

    def at(self, **names: Any) -> Row:
        """Return the same row with other URL variables."""
        return Row(self.statuses, self.body, names, self.query)

    def sending(self, **body: Any) -> Row:
        """Return the same row with a body."""
        return Row(self.statuses, body, self.names, self.query)

    def asking(self, query: str) -> Row:
        """Return the same row with a query."""
        return Row(self.statuses, self.body, self.names, query)


def same(status: int) -> Row:
    """Return a row with the same status for everybody."""
    return Row((status,) * 5)


def known(status: int = 200) -> Row:
    """Return a row for logged-in users, who see only their own teams' objects."""
    return Row((401, status, status, status, status))


def reads(status: int = 200) -> Row:
    """Return a row for reading a team's object, which others do not find."""
    return Row((401, 404, status, status, 404))


def writes(status: int, **body: Any) -> Row:
    """Return a row that only members may write, not viewers; others do not find it."""
    return Row((401, 404, 403, status, 404), body)


def staff_writes(status: int, **body: Any) -> Row:
    """Return a row that only staff may write."""
    return Row((401, 403, 403, 403, status), body)


def page(status: int = 200) -> Row:
    """Return a row for a page of all logged-in users."""
    return Row((LOGIN, status, status, status, status))


def page_reads(status: int = 200) -> Row:
    """Return a row for a page of a team."""
    return Row((LOGIN, 404, status, status, 404))


def page_writes(status: int, **body: Any) -> Row:
    """Return a row for a form of a team."""
    return Row((LOGIN, 404, 403, status, 404), body)


def page_staff(status: int) -> Row:
    """Return a row for a page of staff."""
    return Row((LOGIN, 403, 403, 403, status))


def team_managers(status: int, **body: Any) -> Row:
    """Return a row for forms of staff and of the team's admins, who are tested separately."""
    return Row((LOGIN, 404, 403, 403, status), body)


Methods = Mapping[str, Row]
_TASK: Final = "api/v1/tasks/<uuid:task_id>/"
_SESSION: Final = _TASK + "sessions/<uuid:session_id>/"
_REMOTE: Final = "api/v1/repositories/<uuid:repository_id>/remote/"
_PROMPT: Final = _SESSION + "prompts/<name:message_id>/"

API: Final[Mapping[str, Methods]] = {
    "api/v1/tasks/": {
        "get": known(),
        "post": Row((401, 400, 403, 201, 400), {"title": "A task", "team": "team"}),
    },
    "api/v1/sessions/bulk/": {"post": Row((401, 200, 403, 200, 200), {"action": "stop", "sessions": ["{session_id}"]})},
    "api/v1/tasks/bulk/": {"post": Row((401, 200, 403, 200, 200), {"action": "archive", "tasks": ["{task_id}"]})},
    _TASK: {"get": reads(), "patch": writes(200, title="Another"), "delete": writes(409)},
    _TASK + "unfinished/": {"get": reads()},
    _TASK + "archive/": {"post": writes(200)},
    _TASK + "unarchive/": {"post": writes(200)},
    _TASK + "done/": {"post": writes(200)},
    _TASK + "cancel/": {"post": writes(200)},
    _TASK + "reopen/": {"post": writes(200)},
    _TASK + "acknowledge/": {"post": reads()},
    _TASK + "sessions/": {
        "get": reads(),
        "post": writes(201, agent_profile="{profile}", executor="{executor}"),
    },
    _SESSION: {"get": reads(), "patch": writes(200, policy="manual"), "delete": writes(409)},
    _SESSION + "status/": {"get": reads()},
    _SESSION + "resume/": {"post": writes(202)},
    _SESSION + "prompt/": {"post": writes(202, message_id="m", text="Go on")},
    _SESSION + "cancel/": {"post": writes(202)},
    _SESSION + "stop/": {"post": writes(202)},
    _SESSION + "background/": {"patch": writes(400)},
    _SESSION + "go-on/": {"post": writes(409)},
    _SESSION + "more-output/": {"post": writes(409)},
    _SESSION + "close/": {"post": writes(202, **{"as": "completed"})},
    _SESSION + "settings/": {"get": reads(), "post": writes(409, setting="mode", value="plan")},
    _SESSION + "login/": {"get": reads(), "post": Row((401, 404, 403, 403, 404), {"method": "account"})},
    _SESSION + "logout/": {"post": Row((401, 404, 403, 403, 404))},
    _SESSION + "acknowledge/": {"post": reads()},
    _SESSION + "messages/": {"get": reads()},
    _SESSION + "events/": {"get": reads()},
    _SESSION + "events/stream": {"get": reads()},
    _SESSION + "receipts/": {"get": reads()},
    _SESSION + "runs/": {"get": reads()},
    _SESSION + "files/": {"get": reads(503)},
    _SESSION + "files/search/": {"get": reads(503).asking("query=x")},
    _SESSION + "files/content/": {
        "get": reads(503).asking("path=x"),
        "put": Row((401, 404, 403, 403, 404), {"content": "x"}, query="path=x"),
    },
    _SESSION + "git/status/": {"get": reads(503)},
    _SESSION + "git/diff/": {"get": reads(503)},
    _SESSION + "git/log/": {"get": reads(503)},
    _SESSION + "merge/": {
        "get": reads(),
        "post": writes(403, strategy="merge", branch_commit="a" * 40, target_commit="b" * 40),
    },
    _SESSION + "finish/": {"get": reads()},
    _SESSION + "review/": {"get": reads(503)},
    _SESSION + "review/hunks/": {"get": reads(503).asking("path=x")},
    _SESSION + "review/comments/": {
        "get": reads(),
        "post": writes(201, path="x", first_line=1, excerpt="x", text="Why?"),
    },
    _SESSION + "review/comments/send/": {"post": writes(409, message_id="m")},
    _SESSION + "review/comments/<uuid:comment_id>/": {
        "patch": writes(404, text="Why?").at(comment_id="00000000-0000-4000-8000-000000000000"),
        "delete": writes(404).at(comment_id="00000000-0000-4000-8000-000000000000"),
    },
    _SESSION + "review/commit/": {
        "get": reads(503),
        "post": writes(503, message="x", files=[{"path": "x", "content": "file", "version": "v"}]),
    },
    _SESSION + "review/loss/": {"get": reads(503).asking("path=x&action=discard")},
    _SESSION + "review/undo/": {"post": writes(503, path="x", action="discard", version="v")},
    _SESSION + "review/viewed/": {"get": reads(), "post": reads(204).sending(version="v", viewed=True)},
    _SESSION + "git/commit/": {"post": writes(503, message="Go on")},
    _SESSION + "permissions/": {"get": reads()},
    _SESSION + "permissions/<name:permission_id>/": {
        "post": writes(202, option_id="allow", resume_token="{token}"),
    },
    _SESSION + "waits/": {"post": writes(409, kind="external")},
    _SESSION + "waits/<name:wait_id>/again/": {"post": writes(409).at(wait_id="none")},
    _SESSION + "waits/<name:wait_id>/continue/": {"post": writes(409).at(wait_id="none")},
    "api/v1/runs/resume/": {"post": Row((403,) * 5, {"resume_token": "none"})},
    _SESSION + "prompts/": {"get": reads()},
    _SESSION + "attachments/<name:sha256>/": {"get": Row((401, 404, 404, 404, 404)).at(sha256="0" * 64)},
    _PROMPT: {
        "patch": writes(200, text="Go on", version=1).at(message_id="queued"),
        "delete": writes(204).at(message_id="queued"),
    },
    _PROMPT + "resend/": {"post": writes(202)},
    _PROMPT + "continue/": {"post": writes(202).at(message_id="interrupted")},
    _PROMPT + "send-now/": {"post": writes(409).at(message_id="queued")},
    _PROMPT + "dismiss/": {"post": writes(200)},
    "api/v1/repositories/": {"get": known(), "post": staff_writes(400)},
    "api/v1/repositories/<uuid:repository_id>/": {
        "get": Row((401, 404, 200, 200, 200)),
        "patch": Row((401, 404, 403, 403, 200), {"name": "renamed"}),
        "delete": Row((401, 404, 403, 403, 204)),
    },
    "api/v1/version/": {"get": known()},
    "api/v1/agent-types/": {"get": known()},
    "api/v1/agent-types/<slug:name>/login/": {
        "get": known(400).at(name="demo"),
        "post": Row(
            (401, 400, 403, 403, 400), {"team": "team", "executor": "{executor}", "method": "account"}, {"name": "demo"}
        ),
    },
    "api/v1/agent-types/<slug:name>/logout/": {
        "post": Row((401, 400, 403, 403, 400), {"team": "team", "executor": "{executor}"}, {"name": "demo"}),
    },
    "api/v1/agent-profiles/": {"get": known(), "post": staff_writes(201, name="x", agent_type="demo")},
    "api/v1/hosts/": {"get": Row((401, 403, 403, 403, 200))},
    "api/v1/hosts/nodes/": {"get": Row((401, 403, 403, 403, 200))},
    "api/v1/hosts/clusters/": {"get": Row((401, 403, 403, 403, 200))},
    "api/v1/hosts/clusters/lost/": {
        "post": staff_writes(404, executor="00000000-0000-4000-8000-000000000000", namespace="n")
    },
    "api/v1/hosts/<int:host_id>/<str:action>/": {"post": staff_writes(404).at(host_id="999", action="cordon")},
    "api/v1/agent-profiles/<uuid:profile_id>/": {
        "get": Row((401, 404, 200, 200, 200)),
        "patch": Row((401, 404, 403, 403, 200), {"mcp_servers": []}),  # the stored ones are not valid
    },
    "api/v1/executors/": {"get": known(), "post": staff_writes(201, name="x", runtime="local_standalone")},
    "api/v1/executors/running/": {"get": known()},
    "api/v1/executors/<uuid:executor_id>/": {
        "get": known(),
        "patch": staff_writes(200, max_live=3),
        "delete": staff_writes(409),
    },
    "api/v1/executors/<uuid:executor_id>/probe/": {"post": Row((401, 403, 403, 403, 200))},
    "api/v1/usage/": {"get": known()},
    "api/v1/search/": {"get": known()},
    "api/v1/teams/<int:team_id>/budget/": {
        "get": Row((401, 404, 200, 200, 200)),
        "put": Row((401, 404, 403, 403, 200), {"tokens": 1000}),
    },
    _SESSION + "push/": {"get": reads(), "post": Row((401, 404, 403, 403, 404), {"commit": "x"})},
    _SESSION + "budget/": {"get": reads(), "put": writes(200, tokens=1000)},
    "api/v1/sweeps/": {"get": known(), "post": staff_writes(202)},
    "api/v1/sweeps/<uuid:sweep_id>/": {"get": known()},
    "api/v1/sweeps/requests/<uuid:request_id>/": {"get": known()},
    "api/v1/attention/": {"get": known()},
    "api/v1/waits/": {"get": known()},
    "api/v1/attention/<uuid:item_id>/acknowledge/": {"post": reads()},
    "api/v1/attention/<uuid:item_id>/dismiss/": {"post": reads()},
    "api/v1/tokens/": {"get": known(), "post": Row((401, 201, 201, 201, 201), {"name": "x"})},
    "api/v1/tokens/<uuid:token_id>/": {"delete": Row((401, 404, 404, 204, 404))},
    "api/v1/notifications/": {"get": known(), "patch": Row((401, 200, 200, 200, 200), {"only_mine": True})},
    "api/v1/notifications/test/": {"post": known(409)},
    "api/v1/notifications/deliveries/": {"get": known()},
    "api/v1/webhooks/": {"get": known(), "post": known(400)},
    "api/v1/webhooks/<uuid:webhook_id>/": {
        "get": Row((401, 404, 404, 200, 404)),
        "patch": Row((401, 404, 404, 200, 404), {"enabled": False}),
        "delete": Row((401, 404, 404, 204, 404)),
    },
    "api/v1/webhooks/<uuid:webhook_id>/rotate/": {"post": Row((401, 404, 404, 200, 404))},
    "api/v1/webhooks/<uuid:webhook_id>/test/": {"post": Row((401, 404, 404, 202, 404))},
    "api/v1/teams/<int:team_id>/policy/": {
        "get": Row((401, 404, 200, 200, 200)),
        "patch": Row((401, 404, 403, 403, 200), {"policy": "manual"}),
    },
    "api/v1/teams/<int:team_id>/mcp-servers/": {
        "get": Row((401, 404, 200, 200, 200)),
        "put": Row((401, 404, 403, 403, 200), {"servers": []}),
    },
    "api/v1/repositories/<uuid:repository_id>/mcp-servers/": {
        "get": Row((401, 404, 200, 200, 200)),
        "put": Row((401, 404, 403, 403, 200), {"servers": []}),
    },
    _REMOTE: {
        "get": Row((401, 404, 200, 200, 200)),
        "put": Row((401, 404, 403, 403, 200), {"address": "git@example.org:team/project.git"}),
        "delete": Row((401, 404, 403, 403, 204)),
    },
    _REMOTE + "key/": {"put": Row((401, 404, 403, 403, 409))},
    _REMOTE + "token/": {"put": Row((401, 404, 403, 403, 200), {"token": "x"})},
    _REMOTE + "host-keys/": {
        "post": Row((401, 404, 403, 403, 409)),
        "put": Row((401, 404, 403, 403, 409), {"fingerprints": []}),
    },
    _REMOTE + "test/": {"post": Row((401, 404, 403, 403, 200))},
    "api/v1/workflows/": {
        "get": known(),
        "post": Row((401, 400, 403, 201, 400), {"team": "team", "name": "Another", "text": "x"}),
    },
    "api/v1/workflows/check/": {"post": Row((401, 200, 200, 200, 200), {"text": "x"})},
    "api/v1/workflows/<uuid:workflow_id>/": {
        "get": reads(),
        "patch": writes(200, description="Another"),
        "delete": writes(204),
    },
    "api/v1/workflows/<uuid:workflow_id>/runs/": {"post": writes(201)},
    "api/v1/workflows/<uuid:workflow_id>/triggers/": {"get": reads()},
    "api/v1/workflows/<uuid:workflow_id>/triggers/confirm/": {"post": writes(409, fingerprint="of another state")},
    "api/v1/workflow-runs/": {"get": known()},
    "api/v1/workflow-runs/<uuid:run_id>/": {"get": reads()},
    "api/v1/workflow-runs/<uuid:run_id>/cancel/": {"post": writes(202)},
    "api/v1/workflow-runs/<uuid:run_id>/resume/": {"post": writes(409)},
    "api/v1/schema/": {"get": known()},
    "api/v1/docs/": {"get": known()},
    "api/v1/": {"get": same(404), "post": same(404)},
}

_PAGE: Final = "tasks/<uuid:task_id>/"
_TEAM: Final = "settings/teams/<int:team_id>/"
_SESSION_PAGE: Final = _PAGE + "sessions/<uuid:session_id>/"

PAGES: Final[Mapping[str, Methods]] = {
    "settings/notifications/": {
        "get": page(),
        "post": Row((LOGIN, 302, 302, 302, 302), {"every": 15, "minimum_share": 0}),
    },
    "settings/notifications/browser/": {"get": page(405), "post": page(302)},
    "settings/notifications/test/": {"get": page(405), "post": page(302)},
    "settings/notifications/devices/": {"get": page(405), "post": page(422)},
    "settings/notifications/devices/key/": {"get": page(405), "post": page()},
    "settings/notifications/devices/renew/": {"get": page(405), "post": page(204)},
    "settings/notifications/devices/replace/": {"get": page(), "post": page(422)},
    "settings/notifications/devices/<uuid:device_id>/<str:what>/": {
        "get": page(405),
        "post": Row((LOGIN, 404, 404, 302, 404), names={"what": "remove"}),
    },
    "settings/notifications/webhooks/": {"get": page(405), "post": page(422)},
    "settings/notifications/webhooks/<uuid:webhook_id>/<str:what>/": {
        "get": page(405),
        "post": Row((LOGIN, 404, 404, 302, 404), names={"what": "switch"}),
    },
    "settings/teams/<int:team_id>/policy/": {
        "get": Row((LOGIN, 404, 200, 200, 200)),
        "post": Row((LOGIN, 404, 403, 403, 302), {"policy": "manual"}),
    },
    "settings/teams/<int:team_id>/mcp-servers/": {
        "get": Row((LOGIN, 404, 200, 200, 200)),
        "post": Row((LOGIN, 404, 403, 403, 302), {"remove": "docs"}),
    },
    "settings/repositories/<uuid:repository_id>/mcp-servers/": {
        "get": Row((LOGIN, 404, 200, 200, 200)),
        "post": Row((LOGIN, 404, 403, 403, 302), {"remove": "docs"}),
    },
    "settings/repositories/": {"get": page(), "post": page_staff(422)},
    "settings/repositories/<uuid:repository_id>/": {
        "get": Row((LOGIN, 404, 200, 200, 200)),
        "post": Row((LOGIN, 404, 403, 403, 302), {"action": "default"}),
    },
    "settings/repositories/<uuid:repository_id>/remote/": {
        "get": Row((LOGIN, 404, 200, 200, 200)),
        "post": Row((LOGIN, 404, 403, 403, 302), {"action": "delete"}),
    },
    "attention/": {"get": page(), "post": page(405)},
    "find/": {"get": page(), "post": page(405)},
    "sessions/list/": {"get": page(), "post": page(405)},
    "waits/": {"get": page(), "post": page(405)},
    "attention/live/": {"get": page(), "post": page(405)},
    "attention/count/": {"get": page(), "post": page(405)},
    "attention/seen/": {"get": page(405), "post": page(302)},
    "attention/<uuid:item_id>/<str:action>/": {
        "get": page(405),
        "post": Row((LOGIN, 404, 302, 302, 404), names={"action": "dismiss"}),
    },
    "": {"get": page(), "post": Row((LOGIN, 422, 403, 422, 403), {"title": "A task"})},
    "live/": {"get": page(), "post": page(405)},
    "settings/executors/": {"get": page_staff(200), "post": page(405)},
    "settings/executors/new/": {"get": page_staff(200), "post": page(405)},
    "settings/executors/new/<slug:runtime>/": {
        "get": page_staff(200).at(runtime="local_standalone"),
        "post": Row((LOGIN, 403, 403, 403, 302), {"name": "There"}, {"runtime": "local_standalone"}),
    },
    "settings/executors/<uuid:executor_id>/": {"get": page_staff(200), "post": page_staff(422)},
    "settings/executors/<uuid:executor_id>/delete/": {"get": page_staff(200), "post": page_staff(409)},
    "settings/executors/<uuid:executor_id>/<str:action>/": {
        "get": page(405).at(action="disable"),
        "post": page_staff(302).at(action="disable"),
    },
    "settings/agents/": {"get": page(), "post": page(405)},
    "settings/agents/new/": {"get": page_staff(200), "post": page(405)},
    "settings/agents/new/<slug:name>/": {
        "get": page_staff(200).at(name="demo"),
        "post": Row((LOGIN, 403, 403, 403, 302), {"name": "New", "permission_mode": "ask"}, {"name": "demo"}),
    },
    "settings/agents/<uuid:profile_id>/": {"get": team_managers(200), "post": team_managers(422)},
    "settings/agents/<uuid:profile_id>/delete/": {"get": page_staff(200), "post": page_staff(409)},
    "settings/agents/<uuid:profile_id>/servers/": {"get": page(405), "post": page_staff(422)},
    "settings/agents/<uuid:profile_id>/<str:action>/": {
        "get": page(405).at(action="disable"),
        "post": team_managers(302).at(action="disable"),
    },
    "executors/": {"get": page(), "post": page(405)},
    "executors/live/": {"get": page(), "post": page(405)},
    "system/": {"get": Row((LOGIN, 403, 403, 403, 200)), "post": page(405)},
    "system/hosts/<int:host_id>/<str:action>/": {
        "get": page(405).at(host_id="999", action="cordon"),
        "post": page_staff(404).at(host_id="999", action="cordon"),
    },
    "system/clusters/<uuid:executor_id>/lost/": {
        "get": page(405).at(executor_id="00000000-0000-4000-8000-000000000000"),
        "post": page_staff(302).at(executor_id="00000000-0000-4000-8000-000000000000"),
    },
    "system/live/": {"get": Row((LOGIN, 403, 403, 403, 200)), "post": page(405)},
    "sessions/bulk/": {
        "get": page(405),
        "post": Row((LOGIN, 200, 403, 200, 403), {"action": "stop", "session": "{session_id}"}),
    },
    "tasks/bulk/": {
        "get": page(405),
        "post": Row((LOGIN, 200, 403, 302, 403), {"action": "archive", "task": "{task_id}"}),
    },
    "executors/<uuid:executor_id>/look/": {"get": page(405), "post": Row((LOGIN, 403, 403, 403, 302))},
    "agents/": {"get": page(), "post": page(405)},
    "agents/<slug:name>/": {"get": page().at(name="demo"), "post": page(405).at(name="demo")},
    "agents/<slug:name>/live/": {
        "get": Row((LOGIN, 200, 200, 200, 404), names={"name": "demo"}),
        "post": page(405).at(name="demo"),
    },
    "agents/<slug:name>/<str:action>/": {
        "get": page(405).at(name="demo", action="key"),
        "post": Row((LOGIN, 302, 403, 302, 404), names={"name": "demo", "action": "key"}),
    },
    "favicon.ico": {"get": same(302), "post": same(405)},
    "help/": {"get": page(), "post": page(405)},
    "help/pictures/<slug:name>.png": {"get": page().at(name="board"), "post": page(405).at(name="board")},
    "first-steps/hide/": {"get": page(405), "post": page(302)},
    "restart/": {"get": page(), "post": page(403)},
    "restart/live/": {"get": page(), "post": page(405)},
    "usage/": {"get": page(), "post": page(405)},
    "search/": {"get": page(), "post": page(405)},
    "settings/teams/<int:team_id>/budget/": {
        "get": Row((LOGIN, 404, 200, 200, 200)),
        "post": Row((LOGIN, 404, 403, 403, 302), {"tokens": "1000"}),
    },
    "sweeps/": {"get": page(), "post": Row((LOGIN, 403, 403, 403, 302))},
    "sweeps/requests/<uuid:request_id>/": {"get": page(), "post": page(405)},
    "sweeps/requests/<uuid:request_id>/live/": {"get": page(), "post": page(405)},
    "sweeps/live/": {"get": page(), "post": page(405)},
    "sweeps/<uuid:sweep_id>/": {"get": page(), "post": page(405)},
    "login/": dict.fromkeys(("get", "post", "put"), Row((200, 302, 302, 302, 302))),
    "login/<str:secret>/": {"get": same(410), "post": same(410)},
    "logout/": {"post": same(302)},
    _PAGE: {"get": page_reads(), "post": page_writes(422, prompt="Go on")},
    _PAGE + "edit/": {
        "get": Row((LOGIN, 404, 302, 200, 404)),
        "post": page_writes(409, title="Another", version="an older one"),
    },
    _PAGE + "delete/": {"get": Row((LOGIN, 404, 302, 200, 404)), "post": page_writes(409)},
    _PAGE + "plan/": {
        "get": Row((LOGIN, 404, 302, 200, 404)),
        "post": page_writes(302).sending(**{"plan-priority": "2", "plan-labels": "bug"}),
    },
    _PAGE + "live/": {"get": page_reads(), "post": page(405)},
    _PAGE + "move/": {"get": page(405), "post": page_writes(302, shown="REVIEW", to="CANCELLED")},
    _PAGE + "<str:action>/": {"get": page(405), "post": page_writes(302).at(action="done")},
    _SESSION_PAGE: {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "live/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "seen/": {"get": page(405), "post": Row((LOGIN, 404, 204, 204, 404), {"seq": "1"})},
    _SESSION_PAGE + "pin/": {"get": page(405), "post": Row((LOGIN, 404, 302, 302, 404), {"pinned": "1"})},
    _SESSION_PAGE + "earlier/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "messages/<uuid:entry_id>/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "finish/": {"get": page_reads(), "post": page_writes(302)},
    _SESSION_PAGE + "finish/live/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "finish/conflicts/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE + "push/": {
        "get": page_reads(),
        "post": Row((LOGIN, 404, 403, 302, 404), {"target": "branch", "commit": "x"}),
    },
    _SESSION_PAGE + "push/live/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "messages/<uuid:entry_id>/images/<str:digest>/": {
        "get": Row((LOGIN, 404, 404, 404, 404)).at(digest="0" * 64),
        "post": page(405).at(digest="0" * 64),
    },
    _SESSION_PAGE + "requests/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "requests/live/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "requests/<name:request_id>/images/<str:digest>/": {
        "get": Row((LOGIN, 404, 404, 404, 404)).at(request_id="p1", digest="0" * 64),
        "post": page(405).at(request_id="p1", digest="0" * 64),
    },
    _SESSION_PAGE + "changes/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "changes/comments/": {
        "get": page(405),
        "post": page_writes(302, action="delete", id="00000000-0000-4000-8000-000000000000"),
    },
    _SESSION_PAGE + "changes/commit/": {"get": page_reads(), "post": page_writes(200, message="x", file="file v x")},
    _SESSION_PAGE + "changes/undo/": {
        "get": page_reads().asking("path=x&action=discard"),
        "post": page_writes(302, path="x", action="discard", version="v"),
    },
    _SESSION_PAGE + "timeline/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "timeline/live/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "edit-prompt/": {
        "get": page_reads(302),
        "post": page_writes(302, message_id="queued", text="Go on", version=1),
    },
    _SESSION_PAGE + "prompt-history/": {"get": page_reads(), "post": page(405)},
    _SESSION_PAGE + "prompt/": {"get": page(405), "post": page_writes(302, message_id="m", text="Go on")},
    _SESSION_PAGE + "waits/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE + "waits/again/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE + "waits/rotate/": {"get": page(405), "post": page_writes(302)},
    _SESSION_PAGE + "<str:action>/": {"get": page(405), "post": page_writes(302)},
    "workflows/": {"get": page(), "post": page(405)},
    "workflows/live/": {"get": page(), "post": page(405)},
    "workflows/new/": {"get": page(), "post": Row((LOGIN, 422, 403, 422, 403))},
    "workflows/check/": {"get": page(405), "post": page()},
    "workflows/<uuid:workflow_id>/": {"get": page_reads(), "post": page_writes(422)},
    "workflows/<uuid:workflow_id>/run/": {"get": page(405), "post": page_writes(302)},
    "workflows/<uuid:workflow_id>/archive/": {"get": page(405), "post": page_writes(302)},
    "workflows/<uuid:workflow_id>/triggers/": {"get": page(405), "post": page_writes(302)},
    "workflows/runs/<uuid:run_id>/": {"get": page_reads(), "post": page(405)},
    "workflows/runs/<uuid:run_id>/live/": {"get": page_reads(), "post": page(405)},
    "workflows/runs/<uuid:run_id>/<str:action>/": {
        "get": page(405),
        "post": Row((LOGIN, 404, 403, 302, 404), names={"action": "cancel"}),
    },
    "settings/": {"get": page(302), "post": page(302)},
    "settings/profile/": {"get": page(), "post": page(422)},
    "settings/theme/": {"get": same(405), "post": same(302)},
    "settings/password/": {"get": page(), "post": page(422)},
    "settings/password/logins/": {"get": page(405), "post": page(302)},
    "settings/tokens/": {"get": page(), "post": page(422)},
    "settings/tokens/<uuid:token_id>/revoke/": {"get": page(405), "post": Row((LOGIN, 404, 404, 302, 404))},
    "settings/members/": {"get": page(), "post": page(405)},
    "settings/teams/": {"get": page(), "post": page_staff(422)},
    _TEAM: {"get": Row((LOGIN, 404, 200, 200, 200)), "post": page(405)},
    _TEAM + "invite/": {"get": page(405), "post": team_managers(422)},
    _TEAM + "add/": {"get": page(405), "post": team_managers(422)},
    _TEAM + "members/<int:user_id>/": {"get": team_managers(200), "post": team_managers(302, role="viewer")},
    _TEAM + "members/<int:user_id>/remove/": {"get": page(405), "post": team_managers(302)},
    "settings/people/": {"get": page_staff(200), "post": page_staff(422)},
    "settings/people/<int:user_id>/link/": {"get": page_staff(405), "post": page_staff(201)},
    "settings/people/<int:user_id>/active/": {
        "get": page_staff(405),
        "post": Row((LOGIN, 403, 403, 403, 302), {"active": "1"}),
    },
    "design/": {"get": page(), "post": page(405)},
    "healthz": {"get": same(200), "post": same(200)},
    "readyz": {"get": same(503), "post": same(503)},
    "metrics": {"get": same(200), "post": same(405)},
}
