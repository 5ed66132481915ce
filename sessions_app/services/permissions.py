"""Answering what an agent asked before acting: one answer counts, and everybody else is told which."""

from __future__ import annotations

import uuid
from typing import Any

from sessions_app.domain.tokens import WaitKind
from sessions_app.models import IntentKind, PermissionRequest, writing
from sessions_app.services import tokens
from sessions_app.services.errors import Invalid, NotFound, TokenConsumed
from sessions_app.services.intents import order


def answer(session_id: uuid.UUID, permission_id: str, option_id: str, secret: str, by: Any) -> PermissionRequest:
    """Answer a permission with its key; the same option again gets the first answer, from whomever.

    Raises NotFound, Invalid for an option that was not offered, and the errors of ``services.tokens``.
    """
    with writing(session_id) as draft:
        asked = draft.session.permissions.select_for_update().filter(id=permission_id).first()
        if asked is None:
            raise NotFound("The session asked no such permission.")
        token = tokens.find_for(secret, draft.session, WaitKind.PERMISSION, asked.id, asked.run_id)
        if option_id not in {option.get("option_id") for option in asked.options}:
            raise Invalid("This permission has no such option.", field="option_id")
        try:
            _, first = tokens.redeem(draft, token, key=option_id, answer={"option_id": option_id}, by=by)
        except TokenConsumed as error:
            raise _told(asked, error) from None
        if first:
            order(draft.session, IntentKind.ANSWER, by, {"permission_id": asked.id, "option_id": option_id})
    return asked


def _told(asked: PermissionRequest, error: TokenConsumed) -> TokenConsumed:
    """Which option won, and whose answer it was."""
    token = tokens.of_permissions([asked])[asked.id]
    option_id = str((token.first_answer or {}).get("option_id", ""))
    who = error.details.get("by") or "Somebody"
    message = f"{who} has answered this already: {name_of(asked, option_id)}."
    return TokenConsumed(message, **{**error.details, "option_id": option_id})


def name_of(asked: PermissionRequest, option_id: str) -> str:
    """An option in the agent's words."""
    names = {option.get("option_id"): option.get("name") for option in asked.options}
    return str(names.get(option_id) or option_id)
