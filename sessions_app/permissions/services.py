"""Answer the requests of agents, each with its key.

The content of a form is checked before it is stored, sealed until the agent has it, then forgotten.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from django.contrib.auth.models import User
from django.utils.crypto import salted_hmac

from executors_app.encryption import SecretUnreadable
from executors_app.wire import questions
from executors_app.wire.questions import Problem, ProblemCode, check_answer, patterns_of
from sessions_app.confined.client import PoolUnavailable, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.kernel.rules.states import RequestKind
from sessions_app.kernel.services.errors import Invalid, InvalidAnswer, NotFound, TokenConsumed, TokenInvalid
from sessions_app.kernel.transactions import create_intent
from sessions_app.models import IntentKind, PermissionRequest, SessionTransaction, WaitKey, session_transaction
from sessions_app.rendering.pool import TEXT_POOL
from sessions_app.waits.rules.wait_keys import WaitKeyScope, WaitKind
from sessions_app.waits.services import find_wait_key, redeem_wait_key

Content = Mapping[str, Any]

_NO_REQUEST: Final = "The session has no such permission request."


def permission_keys(requests: Collection[PermissionRequest]) -> dict[str, WaitKey]:
    """Return the newest key of each permission, by permission id; one query."""
    ids = [request.id for request in requests]
    keys = WaitKey.objects.filter(wait_kind=WaitKind.PERMISSION, wait_id__in=ids).select_related("consumed_by")
    return {key.wait_id: key for key in keys.order_by("created_at", "id")}


def answer_permission(
    session_id: uuid.UUID,
    permission_id: str,
    option_id: str,
    secret: str,
    by: User,
    *,
    content: Content | None = None,
) -> PermissionRequest:
    """Answer a permission request or a question with its key; giving the same answer again changes nothing.

    ``content`` holds the fields of a form. Raises NotFound, Invalid for an option that was not offered, InvalidAnswer,
    and the errors of ``redeem_wait_key``.
    """
    # Without the lock of the session: a question never changes, and checking its answer takes time.
    request = PermissionRequest.objects.filter(session=session_id, id=permission_id).first()
    if request is None:
        raise NotFound(_NO_REQUEST)
    _find_key(request, secret)
    content = checked_content(request, option_id, content)
    with session_transaction(session_id) as transaction:
        request = transaction.session.permissions.select_for_update().filter(id=permission_id).first()
        if request is None:
            raise NotFound(_NO_REQUEST)
        key = _find_key(request, secret)
        if option_id not in {option.get("option_id") for option in request.offered_options}:
            raise Invalid("This permission has no such option.", field="option_id")
        idempotency_key = answer_idempotency_key(request, option_id, content)
        answer = {"option_id": option_id}
        try:
            _, is_first = redeem_wait_key(transaction, key, idempotency_key=idempotency_key, answer=answer, by=by)
        except TokenConsumed as error:
            raise _already_answered_error(request, error) from None
        if is_first:
            request.sealed_answer = dict(content)
            request.save(update_fields=["sealed_answer"])
            _send_to_agent(transaction, request.id, option_id, by)
    return request


def send_timeout_to_agent(transaction: SessionTransaction, permission_id: str) -> None:
    """Notify the agent that nobody answered in time, also if we crash right after this transaction."""
    _send_to_agent(transaction, permission_id, None, None)


def _send_to_agent(transaction: SessionTransaction, permission_id: str, option_id: str | None, by: User | None) -> None:
    """Write the intent that the supervisor carries out; without an option, the agent's request is cancelled."""
    payload = {"permission_id": permission_id, "option_id": option_id}
    create_intent(transaction.session, IntentKind.ANSWER, by, payload)


def _find_key(request: PermissionRequest, secret: str) -> WaitKey:
    """Return the key with this secret if it belongs to the request; raises TokenInvalid otherwise."""
    run_id = None
    if request.run_id is not None:
        run_id = str(request.run_id)
    key = find_wait_key(secret)
    if key.scope != WaitKeyScope(str(request.session_id), run_id, WaitKind.PERMISSION, request.id):
        raise TokenInvalid
    return key


def _already_answered_error(request: PermissionRequest, error: TokenConsumed) -> TokenConsumed:
    """Return the error that names the chosen option and who chose it."""
    key = permission_keys([request])[request.id]
    option_id = str((key.first_answer or {}).get("option_id", ""))
    who = error.details.get("by") or "Someone"
    message = f"{who} has already answered this: {option_name(request, option_id)}."
    return TokenConsumed(message, **{**error.details, "option_id": option_id})


def option_name(request: PermissionRequest, option_id: str) -> str:
    """Return the agent's name of an option."""
    names = {option.get("option_id"): option.get("name") for option in request.options}
    return str(names.get(option_id) or option_id)


def checked_content(request: PermissionRequest, option_id: str, content: Content | None) -> Content:
    """Return what the agent gets with this answer; empty unless a form is accepted.

    Takes up to a few seconds if the agent's patterns are hostile, so the session must not be locked. Raises Invalid for
    content that nobody asked for, and InvalidAnswer with the problems by field.
    """
    is_form = request.kind == RequestKind.QUESTION and request.question.get("mode") == questions.FORM
    if not is_form or option_id != questions.ACCEPT:
        if content:
            raise Invalid("Only an accepted form has content.", field="content")
        return {}
    given = content or {}
    problems = check_answer(request.question, given) or _pattern_problems(request, given)
    if problems:
        fields = {name: {"code": one.code.value, "message": one.message} for name, one in problems.items()}
        raise InvalidAnswer(fields=fields)
    return given


def answer_idempotency_key(request: PermissionRequest, option_id: str, content: Content) -> str:
    """Return the idempotency key of an answer, which does not reveal its content."""
    if not content:
        return option_id
    digest = salted_hmac(f"question {request.id}", json.dumps(content, sort_keys=True), algorithm="sha256")
    return f"{option_id}:{digest.hexdigest()}"


def undelivered_content(request: PermissionRequest) -> Content:
    """Return the content of an answer on its way; empty if there is none, or if its key is gone."""
    try:
        content: Content = request.sealed_answer
    except SecretUnreadable:
        return {}
    return content


def _pattern_problems(request: PermissionRequest, content: Content) -> dict[str, Problem]:
    found = list(patterns_of(request.question, content))
    owner = f"team:{request.session.task.team_id}"
    matches = match_patterns([(pattern, text) for _, pattern, text in found], owner)
    if matches is None:
        message = "The agent’s pattern for this field takes too long to check. Try a shorter text, or decline."
        return {name: Problem(ProblemCode.PATTERN_TIMEOUT, message) for name, _, _ in found}
    return {
        name: Problem(ProblemCode.BAD_PATTERN, f"Expected text that matches {pattern}")
        for (name, pattern, _), matched in zip(found, matches, strict=True)
        if matched is False
    }


PATTERN_LIMITS: Final = Limits(cpu_seconds=1.0, seconds=5.0, memory=512 << 20)
"""For all patterns of one answer."""


def match_patterns(pairs: Sequence[tuple[str, str]], owner: str) -> list[bool | None] | None:
    """Return for each pattern and text whether the pattern occurs in the text; None if all of them take too long.

    The entry of a pattern that Python does not understand is None, because agents write those of JavaScript. ``owner``
    is whose text it is, for ``TEXT_POOL``.
    """
    if not pairs:
        return []
    try:
        answer = TEXT_POOL.run("matched_patterns", {"pairs": pairs}, owner=owner, limits=PATTERN_LIMITS)
    except (TooExpensive, PoolUnavailable):
        return None
    matches: list[bool | None] = answer["matches"]
    return matches
