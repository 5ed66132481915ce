"""Waits that a single-use key ends: permissions, tool results and external callbacks."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
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
    NotFound,
    TerminalState,
    TokenConsumed,
    TokenExpired,
    TokenInvalid,
    TokenRevoked,
)
from sessions_app.models import (
    INTERRUPTED_WAIT,
    IntentKind,
    PermissionRequest,
    Prompt,
    ResumeToken,
    SessionTransaction,
    TaskSession,
    Turn,
    resolve_items,
    session_transaction,
)
from sessions_app.permissions.services import answer_key, checked_content
from sessions_app.prompts.services.prompt_context import continue_prompt_prefix, to_interrupted_wait, wait_of
from sessions_app.sessions.services.intents import TEXT_LIMIT, create_intent, prepare_for_prompt, validate_prompt_text
from sessions_app.turns.rules.continuation import interrupted_wait_prompt
from sessions_app.waits import models as writes
from sessions_app.waits.models import consume_token
from sessions_app.waits.rules.wait_tokens import TokenScope, TokenState, WaitKind

_CHANGED_TEXT: Final = "The agent has changed this action since it was shown. Read it again, then answer."
_NO_REQUEST: Final = "The session has no such permission request."


def find_token(secret: str) -> ResumeToken:
    """Return the key with this secret, in any state; raises TokenInvalid if there is none."""
    token = ResumeToken.of_secret(secret) if secret else None
    if token is None:
        raise TokenInvalid
    return token


def find_token_for(secret: str, session: TaskSession, kind: WaitKind, wait_id: str, run_id: Any) -> ResumeToken:
    """Return the key with this secret if it belongs to this wait; raises TokenInvalid otherwise."""
    token = find_token(secret)
    if token.scope != TokenScope(str(session.id), None if run_id is None else str(run_id), kind, wait_id):
        raise TokenInvalid
    return token


def redeem_token(
    transaction: SessionTransaction, token: ResumeToken, *, key: str, answer: dict[str, Any], by: User | None = None
) -> tuple[dict[str, Any], bool]:
    """Consume a key; return the answer to give, and whether this is the first use.

    A repeat with the same idempotency ``key`` gets the first answer. An empty ``key`` never counts as a repeat. Raises
    TokenConsumed (with who was first), TokenRevoked and TokenExpired.
    """
    if consume_token(transaction, token, key=key, answer=answer, by=by):
        return answer, True
    settled = ResumeToken.objects.select_related("consumed_by").get(id=token.id)
    answer_given = earlier_answer(settled, key)
    if answer_given is None:
        raise _refusal_error(settled)
    return answer_given, False


def earlier_answer(token: ResumeToken, key: str) -> dict[str, Any] | None:
    """Return the first answer if this is a repeat; None while the key is active. Raises as ``redeem_token``."""
    state = token.state(timezone.now())
    if state is TokenState.ACTIVE:
        return None
    if state is TokenState.CONSUMED and key and token.idempotency_key == key:
        return dict(token.first_answer or {})
    raise _refusal_error(token)


def _refusal_error(token: ResumeToken) -> TokenConsumed | TokenRevoked | TokenExpired:
    """Return the error for a key that is no longer active, with the reason."""
    state = token.state(timezone.now())
    if state is TokenState.CONSUMED:
        by = token.consumed_by.get_username() if token.consumed_by else None
        return TokenConsumed(wait_id=token.wait_id, consumed_at=_iso_time(token.consumed_at), by=by)
    if state is TokenState.REVOKED:
        message = _CHANGED_TEXT if token.reason == writes.TOOL_CALL_CHANGED else ""
        return TokenRevoked(message, wait_id=token.wait_id, revoked_at=_iso_time(token.revoked_at), reason=token.reason)
    return TokenExpired(wait_id=token.wait_id, expired_at=_iso_time(token.expires_at))


def _iso_time(moment: datetime | None) -> str | None:
    if moment:
        return moment.isoformat()
    return None


def permission_tokens(asked: Collection[PermissionRequest]) -> dict[str, ResumeToken]:
    """Return the newest key of each permission, by permission id; one query."""
    ids = [request.id for request in asked]
    rows = ResumeToken.objects.filter(wait_kind=WaitKind.PERMISSION, wait_id__in=ids).select_related("consumed_by")
    return {token.wait_id: token for token in rows.order_by("created_at", "id")}


def shown_secret(token: ResumeToken | None) -> str | None:
    """Return the secret of an active key; None otherwise. The caller has checked that the user may answer."""
    if token is None or token.state(timezone.now()) is not TokenState.ACTIVE:
        return None
    return token.secret()


def answer_permission(
    session_id: uuid.UUID,
    permission_id: str,
    option_id: str,
    secret: str,
    by: User,
    *,
    content: Mapping[str, Any] | None = None,
) -> PermissionRequest:
    """Answer a permission request or a question with its key; giving the same answer again changes nothing.

    ``content`` holds the fields of a form. Raises NotFound, Invalid for an option that was not offered, InvalidAnswer,
    and the errors of ``redeem_token``.
    """
    content = _check_content(session_id, permission_id, option_id, secret, content)
    with session_transaction(session_id) as transaction:
        asked = transaction.session.permissions.select_for_update().filter(id=permission_id).first()
        if asked is None:
            raise NotFound(_NO_REQUEST)
        token = find_token_for(secret, transaction.session, WaitKind.PERMISSION, asked.id, asked.run_id)
        if option_id not in {option.get("option_id") for option in asked.offered_options}:
            raise Invalid("This permission has no such option.", field="option_id")
        try:
            key = answer_key(asked, option_id, content)
            _, first = redeem_token(transaction, token, key=key, answer={"option_id": option_id}, by=by)
        except TokenConsumed as error:
            raise _winning_answer(asked, error) from None
        if first:
            asked.sealed_answer = dict(content)
            asked.save(update_fields=["sealed_answer"])
            create_intent(
                transaction.session, IntentKind.ANSWER, by, {"permission_id": asked.id, "option_id": option_id}
            )
    return asked


def _check_content(
    session_id: uuid.UUID, permission_id: str, option_id: str, secret: str, content: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the content to send. The session is not locked: a question never changes, and checking takes time."""
    asked = PermissionRequest.objects.filter(session=session_id, id=permission_id).first()
    if asked is None:
        raise NotFound(_NO_REQUEST)
    session = asked.session
    find_token_for(secret, session, WaitKind.PERMISSION, asked.id, asked.run_id)
    return checked_content(asked, option_id, content)


def _winning_answer(asked: PermissionRequest, error: TokenConsumed) -> TokenConsumed:
    """Return the error that names the chosen option and who chose it."""
    token = permission_tokens([asked])[asked.id]
    option_id = str((token.first_answer or {}).get("option_id", ""))
    who = error.details.get("by") or "Someone"
    message = f"{who} has already answered this: {option_name(asked, option_id)}."
    return TokenConsumed(message, **{**error.details, "option_id": option_id})


def option_name(asked: PermissionRequest, option_id: str) -> str:
    """Return the agent's name of an option."""
    names = {option.get("option_id"): option.get("name") for option in asked.options}
    return str(names.get(option_id) or option_id)


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
            token = _repeat_wait(transaction, run, reason, deadline, by)
        else:
            token = _begin_wait(transaction, kind, reason, deadline, by)
    return OpenWait(token.run_id, token.wait_id, token.secret(), deadline)


def rotate_wait_token(session_id: uuid.UUID, wait_id: str, by: User) -> OpenWait:
    """Replace the key of an open wait; the old one is revoked. Raises Conflict if the wait is over."""
    with session_transaction(session_id) as transaction:
        run = _open_run_of(transaction, wait_id)
        token = _repeat_wait(transaction, run, run.wait_reason, run.deadline_at, by)
    return OpenWait(token.run_id, token.wait_id, token.secret(), token.expires_at)


def end_wait(session_id: uuid.UUID, wait_id: str) -> None:
    """Cancel an open wait and revoke its key. Raises Conflict if the wait is over."""
    with session_transaction(session_id) as transaction:
        _open_run_of(transaction, wait_id)
        writes.end_external_wait(transaction, "cancelled")


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
        token = _begin_wait(transaction, WaitKind(wait["kind"]), wait["reason"], deadline, by)
    return OpenWait(token.run_id, token.wait_id, token.secret(), deadline)


def continue_without_answer(session_id: uuid.UUID, wait_id: str, by: User) -> Prompt:
    """Queue a prompt that tells the agent to continue without the answer; repeating this returns the same prompt.

    A withdrawn prompt is replaced by a new one. Raises Conflict if anything has happened in the session since, and the
    errors of ``prepare_for_prompt``.
    """
    name = continue_prompt_prefix({"id": wait_id})
    with session_transaction(session_id) as transaction:
        earlier = list(transaction.session.prompts.filter(message_id__startswith=name).order_by("id"))
        if earlier and earlier[-1].state != PromptState.WITHDRAWN:
            return earlier[-1]
        _refuse_ended(transaction)
        wait = _interrupted_run(transaction, wait_id)
        prepare_for_prompt(transaction, by)
        resolve_items(transaction, "continued", kinds=(AttentionKind.WAIT_INTERRUPTED,))
        name, text = f"{name}:{len(earlier)}" if earlier else name, interrupted_wait_prompt(to_interrupted_wait(wait))
        return transaction.queue_prompt(name, text, kind=PromptKind.WAIT, by=by)


def _interrupted_run(transaction: SessionTransaction, wait_id: str) -> Mapping[str, Any]:
    """Return the wait that ended without an answer; raises Conflict if anything has happened since."""
    wait, run = wait_of(transaction.session), transaction.newest_run
    if wait is None or run is None or (wait["id"], wait["run_id"]) != (wait_id, str(run.id)):
        raise Conflict("This wait did not end without an answer, or the session has continued since.")
    return wait


def _begin_wait(
    transaction: SessionTransaction, kind: WaitKind, reason: str, deadline: datetime | None, by: User
) -> ResumeToken:
    if transaction.open_run is not None or _has_prompts(transaction.session):
        raise Conflict("The agent is working, or has a prompt to work on. A wait can begin when its turn has ended.")
    wait_id = str(uuid.uuid4())
    # Also the message id of the prompt that will carry the result.
    transaction.start_run(f"wait:{wait_id}", has_process=False)
    resolve_items(transaction, "waits_again", kinds=(AttentionKind.WAIT_INTERRUPTED,))
    return writes.begin_wait(transaction, kind, wait_id, deadline=deadline, reason=reason, by=by)


def _repeat_wait(
    transaction: SessionTransaction, run: Turn, reason: str, deadline: datetime | None, by: User
) -> ResumeToken:
    writes.revoke_tokens(transaction, "rotated", run=run)
    run.wait_reason, run.deadline_at = reason, deadline
    run.save(update_fields=["wait_kind", "wait_reason", "deadline_at"])
    return writes.mint_token(transaction, run, WaitKind(run.wait_kind), run.wait_id, expires_at=deadline, by=by)


def resume_wait(secret: str, payload: Any, key: str) -> dict[str, str]:
    """End a wait with its result; return ``{run_id, status}``. The secret is the only credential.

    It has the rights of the user who requested the wait: if that user may no longer write in the team, it is refused
    (TokenRevoked). A repeat with the same idempotency ``key`` gets the first answer. Raises the errors of
    ``redeem_token`` and ``prepare_for_prompt``; after the latter, the key remains usable.
    """
    token = find_token(secret)
    if token.wait_kind == WaitKind.PERMISSION or token.run_id is None:
        raise TokenInvalid
    # A shortcut without a lock. Of two requests that pass it at the same time, ``redeem_token`` lets one win.
    if (earlier := earlier_answer(token, key)) is not None:
        return earlier
    if token.by is not None and not may_write_session(token.by, token.session):
        raise TokenRevoked(wait_id=token.wait_id, reason="owner_left")
    answer = {"run_id": str(token.run_id), "status": str(DerivedStatus.RUNNING)}
    with session_transaction(token.session_id) as transaction:
        answer, first = redeem_token(transaction, token, key=key, answer=answer)
        # Key and prompt commit together: if the prompt is refused, the key is not used up.
        if first:
            _resume_run(transaction, token, payload)
    return answer


def _resume_run(transaction: SessionTransaction, token: ResumeToken, payload: Any) -> None:
    """Resume the wait's run and queue its result as a prompt; a sleeping agent is woken."""
    _refuse_ended(transaction)
    run = transaction.open_run
    if run is None or run.id != token.run_id:
        raise TokenRevoked
    text = _payload_text(run, payload)
    transaction.move_run("resume", reason="result")
    prepare_for_prompt(transaction, None)
    transaction.queue_prompt(run.message_id, text, kind=PromptKind.WAIT)


def _refuse_ended(transaction: SessionTransaction) -> None:
    if transaction.session.state in ENDED_STATES or transaction.session.task.is_over:
        raise TerminalState


def _payload_text(run: Turn, payload: Any) -> str:
    """Return the prompt text for a payload: text unchanged, anything else as JSON."""
    if payload in (None, "", {}, []):
        payload = f"The awaited result has arrived: {run.wait_reason or 'continue'}"
    text = payload if isinstance(payload, str) else readable_json(payload, TEXT_LIMIT)
    validate_prompt_text(text, field="payload")
    return text
