"""Waits for an external result, and the redemption of the keys that end waits of all kinds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.auth.models import User
from django.utils import timezone

from sessions_app.accounts.authorization import may_write_session
from sessions_app.attention.rules.notices import AttentionKind
from sessions_app.kernel.rules.readable_json import readable_json
from sessions_app.kernel.rules.states import (
    ENDED_STATES,
    OPEN_PROMPT_STATES,
    DerivedStatus,
    PromptKind,
    PromptState,
    RunState,
)
from sessions_app.kernel.services.errors import (
    Conflict,
    Invalid,
    TerminalState,
    TokenConsumed,
    TokenExpired,
    TokenInvalid,
    TokenRevoked,
)
from sessions_app.models import (
    INTERRUPTED_WAIT,
    Prompt,
    SessionTransaction,
    TaskSession,
    Turn,
    WaitKey,
    resolve_items,
    session_transaction,
)
from sessions_app.prompts.services import (
    TEXT_LIMIT,
    continue_prompt_prefix,
    prepare_for_prompt,
    to_interrupted_wait,
    validate_prompt_text,
    wait_of,
)
from sessions_app.turns.rules.continuation import interrupted_wait_prompt
from sessions_app.waits.events import WaitKeyConsumed
from sessions_app.waits.models import (
    TOOL_CALL_CHANGED,
    begin_wait,
    end_external_wait,
    mint_wait_key,
    reach_crash_points,
    revoke_wait_keys,
)
from sessions_app.waits.rules.wait_keys import WaitKeyState, WaitKind

_REVOKED_TEXTS: Final = {
    TOOL_CALL_CHANGED: "The agent has changed this action since it was shown. Read it again, then answer.",
}
"""What the holder of a revoked key reads, by the reason; otherwise that the key is not valid any more."""


def find_wait_key(secret: str) -> WaitKey:
    """Return the key with this secret, in any state; raises TokenInvalid if there is none."""
    if not secret:
        raise TokenInvalid
    key = WaitKey.of_secret(secret)
    if key is None:
        raise TokenInvalid
    return key


def redeem_wait_key(
    transaction: SessionTransaction,
    key: WaitKey,
    *,
    idempotency_key: str,
    answer: dict[str, Any],
    by: User | None = None,
) -> tuple[dict[str, Any], bool]:
    """Consume a key; return the answer to give, and whether this is the first use.

    A repeat with the same ``idempotency_key`` gets the first answer. An empty one never counts as a repeat. Raises
    TokenConsumed (with who was first), TokenRevoked and TokenExpired.
    """
    now = timezone.now()
    values = {"consumed_at": now, "consumed_by": by, "idempotency_key": idempotency_key, "first_answer": answer}
    # One guarded UPDATE decides: of two requests with the same key, exactly one changes the row.
    if WaitKey.objects.active(now).filter(id=key.id).update(**values):
        username = None
        if by is not None:
            username = by.get_username()
        transaction.record_event(WaitKeyConsumed(by=username, **key.event_fields))
        return answer, True
    settled = WaitKey.objects.select_related("consumed_by").get(id=key.id)
    answer_given = earlier_answer(settled, idempotency_key)
    if answer_given is None:
        raise _refusal_error(settled)
    return answer_given, False


def earlier_answer(key: WaitKey, idempotency_key: str) -> dict[str, Any] | None:
    """Return the first answer if this is a repeat; None while the key is active. Raises as ``redeem_wait_key``."""
    state = key.state(timezone.now())
    if state is WaitKeyState.ACTIVE:
        return None
    if state is WaitKeyState.CONSUMED and idempotency_key and key.idempotency_key == idempotency_key:
        return dict(key.first_answer or {})
    raise _refusal_error(key)


def _refusal_error(key: WaitKey) -> TokenConsumed | TokenRevoked | TokenExpired:
    """Return the error for a key that is no longer active, with the reason."""
    state = key.state(timezone.now())
    if state is WaitKeyState.CONSUMED:
        return TokenConsumed(wait_id=key.wait_id, consumed_at=_iso_time(key.consumed_at), by=key.consumer_name)
    if state is WaitKeyState.REVOKED:
        message = _REVOKED_TEXTS.get(key.reason, "")
        return TokenRevoked(message, wait_id=key.wait_id, revoked_at=_iso_time(key.revoked_at), reason=key.reason)
    return TokenExpired(wait_id=key.wait_id, expired_at=_iso_time(key.expires_at))


def _iso_time(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.isoformat()


def shown_secret(key: WaitKey | None) -> str | None:
    """Return the secret of an active key; None otherwise. The caller has checked that the user may answer."""
    if key is None or key.state(timezone.now()) is not WaitKeyState.ACTIVE:
        return None
    return key.secret()


@dataclass(frozen=True, slots=True)
class OpenWait:
    """A wait with the secret of its key, which is shown only this once."""

    run_id: uuid.UUID | None
    wait_id: str
    resume_token: str | None
    deadline: datetime | None


def open_wait(
    session_id: uuid.UUID, reason: str, deadline: datetime | None, by: User, kind: WaitKind = WaitKind.EXTERNAL
) -> OpenWait:
    """Let an idle session wait until ``deadline`` (None: no limit) for a callback or a tool result.

    If it already waits, the wait continues with a new key, and the old one is revoked. Raises Invalid for a deadline in
    the past, TerminalState, and Conflict while the agent works or has a prompt to work on.
    """
    if deadline is not None and deadline <= timezone.now():
        raise Invalid("The deadline has passed.", field="deadline")
    with session_transaction(session_id) as transaction:
        _refuse_ended(transaction)
        run = transaction.open_run
        if run is not None and not run.has_process and run.state == RunState.WAITING:
            run.wait_kind = kind
            key = _repeat_wait(transaction, run, reason, deadline, by)
        else:
            key = _begin_external_wait(transaction, kind, reason, deadline, by)
        reach_crash_points(transaction)
    return OpenWait(key.run_id, key.wait_id, key.secret(), deadline)


def rotate_wait_key(session_id: uuid.UUID, wait_id: str, by: User) -> OpenWait:
    """Replace the key of an open wait; the old one is revoked. Raises Conflict if the wait is over."""
    with session_transaction(session_id) as transaction:
        run = _open_run_of(transaction, wait_id)
        key = _repeat_wait(transaction, run, run.wait_reason, run.deadline_at, by)
        reach_crash_points(transaction)
    return OpenWait(key.run_id, key.wait_id, key.secret(), key.expires_at)


def end_wait(session_id: uuid.UUID, wait_id: str) -> None:
    """Cancel an open wait and revoke its key. Raises Conflict if the wait is over."""
    with session_transaction(session_id) as transaction:
        _open_run_of(transaction, wait_id)
        end_external_wait(transaction, "cancelled")
        reach_crash_points(transaction)


def _open_run_of(transaction: SessionTransaction, wait_id: str) -> Turn:
    run = transaction.open_run
    if run is None or run.has_process or run.state != RunState.WAITING or run.wait_id != wait_id:
        raise Conflict("This wait is over.")
    return run


def can_begin_wait(session: TaskSession) -> bool:
    """Return whether the session is idle, so that a wait could begin now."""
    if session.state in ENDED_STATES or session.task.is_over:
        return False
    return not session.runs.filter(ended_at=None).exists() and not _has_prompts(session)


def _has_prompts(session: TaskSession) -> bool:
    return session.prompts.filter(state__in=OPEN_PROMPT_STATES).exists()


def restart_wait(session_id: uuid.UUID, wait_id: str, by: User, deadline: datetime | None = None) -> OpenWait:
    """Restart a wait that ended without an answer, for the same time again unless a ``deadline`` is given.

    Raises Conflict if anything has happened in the session since, and the errors of ``open_wait``.
    """
    if deadline is not None and deadline <= timezone.now():
        raise Invalid("The deadline has passed.", field="deadline")
    with session_transaction(session_id) as transaction:
        _refuse_ended(transaction)
        wait = _interrupted_run(transaction, wait_id)
        if deadline is None and wait["deadline"]:
            since, until = (datetime.fromisoformat(wait[name]) for name in ("since", "deadline"))
            deadline = timezone.now() + max(until - since, timedelta(0))
        transaction.set_fields(metadata={**transaction.session.metadata, INTERRUPTED_WAIT: {}})
        key = _begin_external_wait(transaction, WaitKind(wait["kind"]), wait["reason"], deadline, by)
        reach_crash_points(transaction)
    return OpenWait(key.run_id, key.wait_id, key.secret(), deadline)


def continue_without_answer(session_id: uuid.UUID, wait_id: str, by: User) -> Prompt:
    """Queue a prompt that tells the agent to continue without the answer; repeating this returns the same prompt.

    A withdrawn prompt is replaced by a new one. Raises Conflict if anything has happened in the session since, and the
    errors of ``prepare_for_prompt``.
    """
    message_id = continue_prompt_prefix({"id": wait_id})
    with session_transaction(session_id) as transaction:
        earlier = list(transaction.session.prompts.filter(message_id__startswith=message_id).order_by("id"))
        if earlier and earlier[-1].state != PromptState.WITHDRAWN:
            return earlier[-1]
        _refuse_ended(transaction)
        wait = _interrupted_run(transaction, wait_id)
        prepare_for_prompt(transaction, by)
        resolve_items(transaction, "continued", kinds=(AttentionKind.WAIT_INTERRUPTED,))
        if earlier:
            message_id = f"{message_id}:{len(earlier)}"
        text = interrupted_wait_prompt(to_interrupted_wait(wait))
        return transaction.add_prompt(message_id, text, kind=PromptKind.WAIT, by=by)


def _interrupted_run(transaction: SessionTransaction, wait_id: str) -> Mapping[str, Any]:
    """Return the wait that ended without an answer; raises Conflict if anything has happened since."""
    wait, run = wait_of(transaction.session), transaction.newest_run
    if wait is None or run is None or (wait["id"], wait["run_id"]) != (wait_id, str(run.id)):
        raise Conflict("This wait did not end without an answer, or the session has continued since.")
    return wait


def _begin_external_wait(
    transaction: SessionTransaction, kind: WaitKind, reason: str, deadline: datetime | None, by: User
) -> WaitKey:
    if transaction.open_run is not None or _has_prompts(transaction.session):
        raise Conflict("The agent is working, or has a prompt to work on. A wait can begin when its turn has ended.")
    wait_id = str(uuid.uuid4())
    # Also the message id of the prompt that will carry the result.
    transaction.start_run(f"wait:{wait_id}", has_process=False)
    resolve_items(transaction, "waits_again", kinds=(AttentionKind.WAIT_INTERRUPTED,))
    return begin_wait(transaction, kind, wait_id, deadline=deadline, reason=reason, by=by)


def _repeat_wait(
    transaction: SessionTransaction, run: Turn, reason: str, deadline: datetime | None, by: User
) -> WaitKey:
    revoke_wait_keys(transaction, "rotated", run=run)
    run.wait_reason, run.deadline_at = reason, deadline
    run.save(update_fields=["wait_kind", "wait_reason", "deadline_at"])
    return mint_wait_key(transaction, run, WaitKind(run.wait_kind), run.wait_id, expires_at=deadline, by=by)


def resume_wait(secret: str, payload: Any, idempotency_key: str) -> dict[str, str]:
    """End a wait with its result; return ``{run_id, status}``. The secret is the only credential.

    It has the rights of the user who requested the wait: if that user may no longer write in the team, it is refused
    (TokenRevoked). A repeat with the same ``idempotency_key`` gets the first answer. Raises the errors of
    ``redeem_wait_key`` and ``prepare_for_prompt``; after the latter, the key remains usable.
    """
    key = find_wait_key(secret)
    if key.wait_kind == WaitKind.PERMISSION or key.run_id is None:
        raise TokenInvalid
    # A shortcut without a lock. Of two requests that pass it at the same time, ``redeem_wait_key`` lets one win.
    first_answer = earlier_answer(key, idempotency_key)
    if first_answer is not None:
        return first_answer
    if key.by is not None and not may_write_session(key.by, key.session):
        raise TokenRevoked(wait_id=key.wait_id, reason="owner_left")
    answer = {"run_id": str(key.run_id), "status": str(DerivedStatus.RUNNING)}
    with session_transaction(key.session_id) as transaction:
        answer, is_first = redeem_wait_key(transaction, key, idempotency_key=idempotency_key, answer=answer)
        # Key and prompt commit together: if the prompt is refused, the key is not used up.
        if is_first:
            _resume_run(transaction, key, payload)
            reach_crash_points(transaction)
    return answer


def _resume_run(transaction: SessionTransaction, key: WaitKey, payload: Any) -> None:
    """Resume the wait's run and queue its result as a prompt; a sleeping agent is woken."""
    _refuse_ended(transaction)
    run = transaction.open_run
    if run is None or run.id != key.run_id:
        raise TokenRevoked
    text = _payload_text(run, payload)
    transaction.move_run("resume", reason="result")
    prepare_for_prompt(transaction, None)
    transaction.add_prompt(run.message_id, text, kind=PromptKind.WAIT)


def _refuse_ended(transaction: SessionTransaction) -> None:
    if transaction.session.state in ENDED_STATES or transaction.session.task.is_over:
        raise TerminalState


def _payload_text(run: Turn, payload: Any) -> str:
    """Return the prompt text for a payload: text unchanged, anything else as JSON."""
    if payload in (None, "", {}, []):
        text = f"The awaited result has arrived: {run.wait_reason or 'continue'}"
    elif isinstance(payload, str):
        text = payload
    else:
        text = readable_json(payload, TEXT_LIMIT)
    validate_prompt_text(text, field="payload")
    return text
