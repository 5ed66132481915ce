"""Permission requests and questions as open waits."""

from __future__ import annotations

from typing import Final

from django.db.models import OuterRef, QuerySet, Subquery

from sessions_app.attention.rules.notices import ATTENTION_KIND_LABELS, AttentionKind
from sessions_app.kernel.rules.states import PermissionState, RequestKind
from sessions_app.models import PermissionRequest, WaitKey
from sessions_app.waits.rules.open_waits import Actor, WaitDetails
from sessions_app.waits.sources import WaitSource

_LARGE_COLUMNS: Final = ("tool_call", "options", "question", "sealed_answer", "answer")
_WAKE_UP: Final = (
    "The answer goes to the agent, once, and its turn goes on. At a deadline the request is cancelled, and the agent "
    "is informed."
)


def _open_requests(kind: RequestKind) -> QuerySet[PermissionRequest]:
    # ``settled_at``: for its index.
    rows = PermissionRequest.objects.filter(settled_at=None, state=PermissionState.PENDING, kind=kind)
    return rows.defer(*_LARGE_COLUMNS)


def _deadline() -> Subquery:
    keys = WaitKey.objects.unsettled().filter(session=OuterRef("session"), wait_id=OuterRef("pk"))
    return Subquery(keys.order_by("-created_at").values("expires_at")[:1])


def _describe(row: PermissionRequest) -> WaitDetails:
    reason = "The agent asks for permission."
    if row.kind == RequestKind.QUESTION:
        reason = "The agent has a question."
    return WaitDetails(Actor.PERSON, reason, _WAKE_UP)


WAIT_SOURCES: Final = (
    WaitSource(
        kind="permission",
        label=ATTENTION_KIND_LABELS[AttentionKind.PERMISSION],
        rows=lambda: _open_requests(RequestKind.PERMISSION),
        describe=_describe,
        since="requested_at",
        deadline=_deadline(),
        item_prefix="permission:",
    ),
    WaitSource(
        kind="question",
        label=ATTENTION_KIND_LABELS[AttentionKind.QUESTION],
        rows=lambda: _open_requests(RequestKind.QUESTION),
        describe=_describe,
        since="requested_at",
        deadline=_deadline(),
        item_prefix="question:",
    ),
)
