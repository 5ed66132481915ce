"""Answers to questions of agents: checked before they are stored, sealed until the agent has them, then forgotten."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.utils.crypto import salted_hmac

from executors_app.encryption import SecretUnreadable
from executors_app.wire import questions
from executors_app.wire.questions import Problem, ProblemCode, check_answer, patterns_of
from sessions_app.confined.client import PoolUnavailable, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.kernel.rules.states import RequestKind
from sessions_app.kernel.services.errors import Invalid, InvalidAnswer
from sessions_app.models import PermissionRequest
from sessions_app.rendering.pool import TEXT_POOL

Content = Mapping[str, Any]


def checked_content(asked: PermissionRequest, option_id: str, content: Content | None) -> Content:
    """Return what the agent gets with this answer; empty unless a form is accepted.

    Takes up to a few seconds if the agent's patterns are hostile, so the session must not be locked. Raises Invalid for
    content that nobody asked for, and InvalidAnswer with the problems by field.
    """
    is_form = asked.kind == RequestKind.QUESTION and asked.question.get("mode") == questions.FORM
    if not is_form or option_id != questions.ACCEPT:
        if content:
            raise Invalid("Only an accepted form has content.", field="content")
        return {}
    given = content or {}
    problems = check_answer(asked.question, given) or _pattern_problems(asked, given)
    if problems:
        told = {name: {"code": one.code.value, "message": one.message} for name, one in problems.items()}
        raise InvalidAnswer(fields=told)
    return given


def answer_key(asked: PermissionRequest, option_id: str, content: Content) -> str:
    """Return the idempotency key of an answer, which does not reveal its content."""
    if not content:
        return option_id
    digest = salted_hmac(f"question {asked.id}", json.dumps(content, sort_keys=True), algorithm="sha256")
    return f"{option_id}:{digest.hexdigest()}"


def undelivered_content(asked: PermissionRequest) -> Content:
    """Return the content of an answer on its way; empty if there is none, or if its key is gone."""
    try:
        content: Content = asked.sealed_answer
    except SecretUnreadable:
        return {}
    return content


def _pattern_problems(asked: PermissionRequest, content: Content) -> dict[str, Problem]:
    found = list(patterns_of(asked.question, content))
    owner = f"team:{asked.session.task.team_id}"
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
