"""Carry out merges and pushes: look whether it has happened, write the plan, move the target, record the end."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Final

from django.db import InterfaceError, OperationalError

from executors_app.machine import crash_points
from executors_app.repositories.remote_address import BadAddress, parse_address
from executors_app.wire.errors import ExecutorError
from sessions_app.finish import models
from sessions_app.finish.effects import EFFECTS, Effect
from sessions_app.finish.models import FinishIntent
from sessions_app.finish.rights import may_finish
from sessions_app.finish.rules.finish import MAX_ATTEMPTS, FinishKind, FinishState, OutcomeUnknown, Refusal

log = logging.getLogger(__name__)
UNAVAILABLE: Final = "finish_unavailable"
FAILED: Final = "finish_failed"
RIGHT_LOST: Final = "finish_right_lost"
OUTCOME_UNKNOWN: Final = "finish_outcome_unknown"


@dataclass(frozen=True, slots=True)
class Place:
    """What an intent works on: it may be slow, or never answer."""

    target: str
    """One repository, here or on a server: of the intents that work on it, one is carried out at a time."""
    host: str = ""
    """The server of a push; empty for a merge."""


def open_intents() -> dict[uuid.UUID, Place]:
    """Return the intents that are to be carried out, the oldest first, with the place of each."""
    rows = FinishIntent.objects.pending().order_by("created_at", "id")
    columns = ("id", "kind", "remote", "session__task__repository_id")
    return {row[0]: _place_of(*row[1:]) for row in rows.values_list(*columns)}


def _place_of(kind: str, remote: str, repository_id: uuid.UUID | None) -> Place:
    if kind != FinishKind.PUSH:
        return Place(f"repository {repository_id}")
    try:
        host = parse_address(remote).host.lower()
    except BadAddress:  # an address that a later release has stored
        host = remote
    return Place(f"remote {remote}", f"host {host}")


def carry_out(intent_id: uuid.UUID) -> bool:
    """Carry an intent out, or continue it after a crash; return False if it is to be tried again later."""
    intent = (
        FinishIntent.objects.pending()
        .select_related("session__task__repository", "session__task__team", "by")
        .filter(id=intent_id)
        .first()
    )
    if intent is None:
        return True
    try:
        _carry_out(intent, EFFECTS[FinishKind(intent.kind)])
    except Refusal as refusal:
        models.settle_refused(intent, refusal)
    except OutcomeUnknown as error:
        models.settle_unknown(intent, error.code, error.message)
    except ExecutorError as error:
        return _record_failure(intent, error.code, error.message)
    except OSError as error:  # such as a full disk
        return _record_failure(intent, UNAVAILABLE, f"A file could not be read or written: {error.strerror or error}.")
    except (OperationalError, InterfaceError):  # the database is unavailable, so nothing can be counted either
        raise
    except Exception as error:
        log.exception("session %s: its %s failed", intent.session_id, intent.kind)
        message = f"An unexpected error occurred ({type(error).__name__}). The server log has the details."
        return _record_failure(intent, FAILED, message)
    return True


def _carry_out(intent: FinishIntent, effect: Effect) -> None:
    # After the plan was written, the target may have been moved by a process that died before it could record it.
    is_done = intent.state == FinishState.APPLYING and effect.is_done(intent)
    if not is_done:
        _require_right(intent)
        result = effect.prepare(intent)
        crash_points.reached("finish.prepared", intent.session_id)
        if not models.record_plan(intent, result):
            return
        crash_points.reached("finish.planned", intent.session_id)
        effect.apply(intent)
        crash_points.reached("finish.applied", intent.session_id)
    models.settle_done(intent)
    crash_points.reached("finish.end_committed", intent.session_id)


def _require_right(intent: FinishIntent) -> None:
    if not may_finish(intent.by, intent.session.task.team, FinishKind(intent.kind)):
        raise Refusal(RIGHT_LOST, f"The user who requested this {intent.kind} no longer has the right to it.")


def _record_failure(intent: FinishIntent, code: str, message: str) -> bool:
    """Write why an attempt failed; after the last one, end the intent. Return whether it has ended."""
    log.warning("session %s: its %s could not be carried out: %s", intent.session_id, intent.kind, message)
    if intent.attempts + 1 < MAX_ATTEMPTS:
        models.record_failed_attempt(intent, code, message)
        return False
    if intent.state == FinishState.APPLYING:
        models.settle_unknown(intent, OUTCOME_UNKNOWN, message)
    else:
        models.settle_refused(intent, Refusal(FAILED if code == FAILED else UNAVAILABLE, message))
    return True
