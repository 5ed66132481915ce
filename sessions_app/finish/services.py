"""Request merges and pushes."""

from __future__ import annotations

from executors_app.machine import crash_points
from sessions_app.finish.events import FinishRequested
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rules.finish import ONCE_STATES
from sessions_app.kernel.services.errors import FinishPending
from sessions_app.models import session_transaction


def request_intent(intent: FinishIntent) -> FinishIntent:
    """Write a new intent and its event; return the earlier one if the same is requested again.

    Raises Conflict while another one of the session is to be carried out.
    """
    event = FinishRequested(
        intent_id=str(intent.id),
        kind=str(intent.kind),
        strategy=str(intent.strategy),
        target=intent.target_ref,
        expected_commit=intent.expected_commit,
        branch_commit=intent.branch_commit,
        by=intent.by.get_username() if intent.by is not None else "",
    )
    with session_transaction(intent.session_id) as transaction:
        # The session is locked, so of two requests at once the second finds the row of the first.
        earlier = _same_intent(intent)
        if earlier is not None:
            return earlier
        if FinishIntent.objects.pending().filter(session_id=intent.session_id).exists():
            raise FinishPending
        intent.save(force_insert=True)
        transaction.record_event(event)
        crash_points.reached("finish_request.written", intent.session_id)
    crash_points.reached("finish_request.committed", intent.session_id)
    return intent


def _same_intent(intent: FinishIntent) -> FinishIntent | None:
    same = FinishIntent.objects.filter(
        session_id=intent.session_id,
        kind=intent.kind,
        remote=intent.remote,
        target_ref=intent.target_ref,
        expected_commit=intent.expected_commit,
        branch_commit=intent.branch_commit,
        state__in=ONCE_STATES,
    )
    return same.first()
