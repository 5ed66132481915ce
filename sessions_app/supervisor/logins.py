"""The login or logout that a start carries: its part of the request, and its outcome from the answer."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db.transaction import on_commit

from executors_app.agent_capabilities import agent_identity
from executors_app.agentctl.agent_settings import REASON_LIMIT, clean_text, parse_auth_methods
from executors_app.agentctl.protocol import Code, LoginAction, LoginState
from sessions_app.models import ReportedAgent, SessionTransaction
from sessions_app.services.agent_login import LOGIN_KEY
from sessions_app.services.agent_setup import retry_after_login

LOGIN_SHARE: Final = 2 / 3
"""Share of ``KANDEV_START_TIMEOUT`` that the agent has for a login; the rest is for workspace and handshake."""
_MAX_LOGIN: Final = 600.0
"""Seconds; agentctl accepts no more."""
_FRESH: Final = timedelta(hours=1)
"""An unchanged report is not written again within this time: many starts would wait for one row."""
ANSWER_LOST: Final = "The agent runs, but its answer about the login was lost."
_OUTCOME_UNKNOWN: Final = (
    "The answer does not say what became of the login. Stop the session, so that its workspace runs the present "
    "version of Kandev, then try again."
)


def login_field(login: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``login`` of the request to start the agent; nothing if the start carries none."""
    if not login:
        return {}
    limit = min(_MAX_LOGIN, settings.KANDEV_START_TIMEOUT * LOGIN_SHARE)
    return {"login": {"action": login["action"], "method": login["method"], "timeout": float(limit)}}


def settle_login(transaction: SessionTransaction, intent_id: uuid.UUID, told: Mapping[str, Any], reason: str) -> None:
    """Write what became of the login that this start carried; nothing if it carried none, or is settled.

    ``told`` is the answer to the start, or what a failed start reported; ``reason`` explains one without an outcome.
    """
    login = transaction.session.metadata.get(LOGIN_KEY)
    if not isinstance(login, dict) or login.get("intent") != str(intent_id) or "state" in login:
        return
    said = told.get("login")
    outcome = said if isinstance(said, dict) and said.get("state") in tuple(LoginState) else None
    if outcome is None:
        outcome = {"state": LoginState.FAILED, "code": Code.LOGIN_FAILED, "reason": reason or _OUTCOME_UNKNOWN}
    state, code = str(outcome["state"]), str(outcome.get("code") or "")[:64]
    reason = clean_text(outcome.get("reason"), REASON_LIMIT)
    ended = {**login, "state": state, "code": code, "reason": reason, "ended_at": transaction.at.isoformat()}
    transaction.set_fields(metadata={**transaction.session.metadata, LOGIN_KEY: ended})
    transaction.record_event(
        "session.login.ended", action=login["action"], method=login["method"], state=state, code=code, reason=reason
    )
    if state == LoginState.SUCCEEDED and login["action"] == LoginAction.LOGIN:
        on_commit(partial(retry_after_login, transaction.session.id))


def remember_agent(transaction: SessionTransaction, told: Mapping[str, Any]) -> None:
    """Store name, version and ways to log in that the agent reported, at the end of the transaction."""
    identity = agent_identity(told)
    if identity is not None:
        transaction.after_events.append(partial(_write_report, transaction, identity, told.get("auth")))


def _write_report(transaction: SessionTransaction, identity: Mapping[str, str], auth: Any) -> None:
    session, auth = transaction.session, auth if isinstance(auth, dict) else {}
    key = {
        "team_id": session.task.team_id,
        "executor_id": session.executor_id,
        "agent_type": session.agent_profile.agent_type,
    }
    values = {
        **identity,
        "auth_methods": parse_auth_methods(auth.get("methods")),
        "logs_out": auth.get("logout") is True,
    }
    known = ReportedAgent.objects.filter(**key).first()
    is_same = known is not None and all(getattr(known, name) == value for name, value in values.items())
    if known is not None and is_same and transaction.at - known.seen_at < _FRESH:
        return
    ReportedAgent.objects.bulk_create(
        [ReportedAgent(**key, **values, seen_at=transaction.at)],
        update_conflicts=True,
        unique_fields=["team", "executor", "agent_type"],
        update_fields=[*values, "seen_at"],
    )
