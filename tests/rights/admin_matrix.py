"""Access to the admin: everybody except staff is redirected, so each row has the statuses for staff.

A model without an entry in ``MODELS``, or an action without one in ``ACTIONS``, fails ``test_admin_matrix``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.rights.matrix import Methods, Row

NO = 403
_OBJECT: Final = "<path:object_id>/"


def staff(get: int, post: int) -> Methods:
    """Return rows with these statuses for staff; everybody else is redirected."""
    return {"get": Row((302, 302, 302, 302, get)), "post": Row((302, 302, 302, 302, post))}


Pages = Mapping[str, Methods]
_COMMON: Final[Pages] = {"": staff(200, 200), _OBJECT + "history/": staff(200, 200), _OBJECT: staff(302, 302)}

RECORD: Final[Pages] = {
    **_COMMON,
    "add/": staff(NO, NO),
    _OBJECT + "change/": staff(200, NO),
    _OBJECT + "delete/": staff(NO, NO),
}
"""Read-only."""
EDITED: Final[Pages] = {**RECORD, _OBJECT + "change/": staff(200, 200)}
"""Can be edited, but neither added nor deleted; an empty form is shown again with its errors."""
KEPT: Final[Pages] = {**EDITED, "add/": staff(200, 200), _OBJECT + "delete/": staff(200, 200)}
"""Can be added, edited and deleted by staff."""
REQUESTED_PAGES: Final[Pages] = {**RECORD, "add/": staff(200, 302)}
"""Read-only, but adding one makes a request."""
GUARDED: Final[Pages] = {
    **dict.fromkeys(("", "add/", _OBJECT + "change/", _OBJECT + "delete/", _OBJECT + "history/"), staff(NO, NO)),
    _OBJECT: staff(302, 302),
}
"""Requires more than staff status: whoever edits users can make them staff."""

SAYS_NOTHING: Final[Pages] = {_OBJECT + "change/": staff(200, 302)}
"""An empty form is valid and is accepted."""

MODELS: Final[Mapping[str, Pages]] = {
    "auth/user": {**GUARDED, "<id>/password/": staff(NO, NO)},
    "auth/group": GUARDED,
    "django_q/schedule": RECORD,
    "django_q/success": RECORD,
    "django_q/failure": RECORD,
    "django_q/ormq": RECORD,
    "executors_app/agentcapability": RECORD,
    "sessions_app/agentsettings": RECORD,
    "executors_app/agentprofile": KEPT,
    "executors_app/executor": KEPT,
    "executors_app/executorrunning": RECORD,
    "executors_app/secretkeycheck": RECORD,
    "accounts/apitoken": RECORD,
    "sessions_app/chore": RECORD,
    "accounts/attemptcount": RECORD,
    "sessions_app/attentionitem": RECORD,
    "sessions_app/attentionmark": RECORD,
    "sessions_app/sessionmark": RECORD,
    "sessions_app/agenttestresult": RECORD,
    "sessions_app/host": RECORD,
    "sessions_app/hostmaintenance": RECORD,
    "sessions_app/datasize": RECORD,
    "sessions_app/backup": RECORD,
    "sessions_app/hostprocess": RECORD,
    "sessions_app/repositorysighting": RECORD,
    "sessions_app/continuityreceipt": RECORD,
    "notifications/delivereditem": RECORD,
    "notifications/delivery": RECORD,
    "sessions_app/finishintent": RECORD,
    "sessions_app/taskplan": RECORD,
    "sessions_app/tasklabel": RECORD,
    "sessions_app/intent": RECORD,
    "sessions_app/leftover": RECORD,
    "accounts/loginlink": RECORD,
    "sessions_app/attachment": RECORD,
    "sessions_app/mcpserverlist": {**KEPT, **SAYS_NOTHING},
    "sessions_app/message": RECORD,
    "sessions_app/messagepart": RECORD,
    "sessions_app/metriccount": RECORD,
    "sessions_app/backgroundwork": RECORD,
    "sessions_app/orphaned": RECORD,
    "sessions_app/removedworktree": RECORD,
    "notifications/notificationsettings": RECORD,
    "sessions_app/permissionrequest": RECORD,
    "sessions_app/presence": RECORD,
    "accounts/preferences": RECORD,
    "sessions_app/prompt": RECORD,
    "sessions_app/recoverysweep": RECORD,
    "sessions_app/reportedagent": RECORD,
    "sessions_app/repository": KEPT,
    "sessions_app/repositoryremote": RECORD,
    "sessions_app/preparedhistory": RECORD,
    "sessions_app/renderedtext": RECORD,
    "sessions_app/reviewcomment": RECORD,
    "sessions_app/viewedversion": RECORD,
    "sessions_app/searchcursor": RECORD,
    "sessions_app/searchdocument": RECORD,
    "sessions_app/waitkey": RECORD,
    "sessions_app/turn": RECORD,
    "sessions_app/sessionevent": RECORD,
    "sessions_app/supervisor": RECORD,
    "sessions_app/suspension": RECORD,
    "sessions_app/sweepoutcome": RECORD,
    "sessions_app/sweeprequest": REQUESTED_PAGES,
    "sessions_app/task": EDITED,
    "sessions_app/tasksession": {**EDITED, **SAYS_NOTHING},
    "sessions_app/teampolicy": {**KEPT, **SAYS_NOTHING},
    "accounts/teamrole": KEPT,
    "sessions_app/turnusage": RECORD,
    "sessions_app/usagebudget": RECORD,
    "sessions_app/budgethold": RECORD,
    "workflows/noderun": RECORD,
    "notifications/pushdevice": RECORD,
    "notifications/pushkey": RECORD,
    "notifications/webhook": RECORD,
    "workflows/workflow": RECORD,
    "workflows/workflowrun": RECORD,
}

SITE: Final[Mapping[str, Methods]] = {
    "": staff(200, 200),
    "login/": {method: Row((302, NO, NO, NO, 302)) for method in ("get", "post")},
    "logout/": {"get": Row((302, 302, 302, 302, 405)), "post": Row((302, 302, 302, 302, 302))},
    "password_change/": staff(302, 302),
    "password_change/done/": staff(200, 405),
    "autocomplete/": staff(NO, 405),
    "jsi18n/": staff(200, 405),
    "r/<path:content_type_id>/<path:object_id>/": staff(404, 404),
    "section/<slug:slug>/": staff(404, 404),
    "^<app_label>/$": staff(200, 200),
    "(?P<url>.*)$": staff(404, 404),
}

ACTIONS: Final[Mapping[str, frozenset[str]]] = {
    "executors_app/agentprofile": frozenset({"delete_selected"}),
    "executors_app/executor": frozenset({"delete_selected"}),
    "accounts/apitoken": frozenset({"revoke"}),
    "sessions_app/mcpserverlist": frozenset({"delete_selected"}),
    "sessions_app/repository": frozenset({"delete_selected"}),
    "sessions_app/tasksession": frozenset({"resume", "stop", "sweep_now"}),
    "sessions_app/teampolicy": frozenset({"delete_selected"}),
    "accounts/teamrole": frozenset({"delete_selected"}),
    "notifications/webhook": frozenset({"switch_off"}),
}
"""The actions of staff on selected rows; other models have none, and other users get none."""
