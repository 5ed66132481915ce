"""Log agents in and out by the methods that they publish: what is known, and requests for it.

A login is part of a start: the agent gets ``authenticate`` before its conversation is opened, so that it is logged in
where it works. The request is a start intent that carries it, and the outcome is written with the outcome of the start.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db.transaction import atomic, on_commit
from django.utils import timezone

from executors_app.agent_capabilities import agent_identity
from executors_app.agents import AgentType
from executors_app.models import AgentProfile, Executor
from executors_app.wire.agent_settings import REASON_LIMIT, clean_text
from executors_app.wire.auth_methods import ENV_VAR, TERMINAL, parse_auth_methods
from executors_app.wire.protocol import Code, LoginAction, LoginState
from sessions_app.accounts.authorization import may_operate, may_operate_in, require_write
from sessions_app.agents.events import LoginEnded, LoginRequested
from sessions_app.agents.models import agent_settings_of
from sessions_app.agents.services import agent_setup
from sessions_app.agents.services.agent_setup import retry_after_login
from sessions_app.kernel.services.errors import AlreadyRunning, Invalid, ReadOnly
from sessions_app.kernel.transactions import open_start_intent
from sessions_app.models import (
    AgentSettings,
    Intent,
    ReportedAgent,
    SessionTransaction,
    TaskSession,
    session_transaction,
)
from sessions_app.recovery.rules.resumability import Mode
from sessions_app.recovery.services.assessment import assess_for_start, refuse_lost_worktree
from sessions_app.sessions.services.intents import ensure_start_intent, require_mode, want_running

LOGIN_KEY: Final = "login"
"""In ``TaskSession.metadata``: the last login or logout that a user requested here.

``{"action", "method", "name", "by", "at", "intent"}``, and once it has ended also ``{"state", "code", "reason",
"ended_at"}``.
"""
RUNNING: Final = "running"
WAITING: Final = "waiting"
WITHDRAWN: Final = "withdrawn"
"""States of a login beside those of ``LoginState``; *withdrawn*: its start ended before the agent was asked."""


# --- what is known ---


@dataclass(frozen=True, slots=True)
class PublishedLogins:
    """The ways to log in that one session's own agent published at its last start."""

    methods: Sequence[Mapping[str, Any]] = ()
    logs_out: bool = False
    """Whether the agent offers to log out."""
    at: datetime | None = None
    """When they were reported; None: never."""


def published_logins(session: TaskSession | None) -> PublishedLogins:
    """Return what this session's own agent published. What another session's agent reports is never offered here."""
    if session is None:
        return PublishedLogins()
    row = agent_settings_of(session)
    if row is None:
        return PublishedLogins()
    return PublishedLogins(parse_auth_methods(row.auth_methods), row.logs_out, row.auth_at)


def published_in_test(
    kind: AgentType, team: Group, executor: Executor, profile: AgentProfile | None = None
) -> PublishedLogins:
    """Return what the agent of the team's newest test there published, also after the test was deleted.

    With ``profile``, only tests of that profile count.
    """
    newest = agent_setup.newest_evidence(kind, team, executor, profile)
    if newest is None or isinstance(newest, TaskSession):
        return published_logins(newest)
    return PublishedLogins(parse_auth_methods(newest.auth_methods), newest.logs_out, newest.auth_at)


def login_of_test(
    kind: AgentType, team: Group, executor: Executor, profile: AgentProfile | None = None
) -> dict[str, Any] | None:
    """Return the last login that was requested in the newest such test there, also after it was deleted."""
    newest = agent_setup.newest_evidence(kind, team, executor, profile)
    if newest is None:
        return None
    if isinstance(newest, TaskSession):
        return login_state(newest)
    return dict(newest.login) or None


def login_methods(published: PublishedLogins, argv: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ways to log in, each with its ``command`` if it is run in a terminal.

    ``argv`` is the command of the agent's profile: an agent adds arguments to it, never replaces it, and sets no
    variables. A command too long to be read at a glance is left out with its method.
    """
    methods = [{**each, "command": _terminal_command(each, argv)} for each in published.methods]
    return [each for each in methods if len(each["command"]) <= COMMAND_LIMIT]


def _terminal_command(method: Mapping[str, Any], argv: Sequence[str]) -> str:
    if method["type"] != TERMINAL or not argv:
        return ""
    return shlex.join([*argv, *method["args"]])


def login_state(session: TaskSession) -> dict[str, Any] | None:
    """Return the last requested login with its state; None if there was none. A query only while it has not ended."""
    login = session.metadata.get(LOGIN_KEY)
    if not isinstance(login, dict):
        return None
    known = {"code": "", "reason": "", "ended_at": None, **login}
    intent_id = known.pop("intent", None)
    if "state" in known:
        return known
    return {**known, "state": _unsettled_state(intent_id)}


def _unsettled_state(intent_id: Any) -> str:
    """Return the state of a login without an outcome from the start that carries it, which is what really happens."""
    intent = Intent.objects.filter(id=intent_id).first()
    if intent is None or intent.done_at is not None or not intent.payload.get("login"):
        return WITHDRAWN
    if intent.claimed_generation is None:
        return WAITING
    return RUNNING


def reported_at(team_id: int, executor_id: uuid.UUID, kind: str) -> ReportedAgent | None:
    """Return name and version that the team's agent of this type last reported on this executor; None if unknown."""
    return ReportedAgent.objects.filter(team_id=team_id, executor_id=executor_id, agent_type=kind).first()


def login_document(
    kind: AgentType,
    reported: ReportedAgent | None,
    argv: Sequence[str],
    session: TaskSession | None,
    *,
    published: PublishedLogins,
    last: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return what the API shows of an agent's logins; ``session``: whose agent published them, if it still exists."""
    document: dict[str, Any] = {
        "agent": {"name": "", "version": ""},
        "needs_version": "",
        "methods": login_methods(published, argv),
        "can_log_out": published.logs_out,
        "reported_at": published.at,
        "last": last,
        "session": None,
        "task": None,
    }
    if reported is not None:
        document["agent"] = {"name": reported.name, "version": reported.version}
        document["needs_version"] = kind.required_version(reported.name, reported.version)
    if session is not None:
        document["session"] = session.id
        document["task"] = session.task_id
    return document


# --- requests ---


def request_login(session_id: uuid.UUID, by: User, method_id: str) -> None:
    """Start the session's agent with a login by one of its methods of type *agent*.

    Raises NotFound, ReadOnly, Invalid, AlreadyRunning, Conflict, and what a start is refused with.
    """
    _request(session_id, by, LoginAction.LOGIN, method_id)


def request_logout(session_id: uuid.UUID, by: User) -> None:
    """Start the session's agent to log it out; the start ends with *auth_required*. Raises as ``request_login``."""
    _request(session_id, by, LoginAction.LOGOUT, "")


def _request(session_id: uuid.UUID, by: User, action: LoginAction, method_id: str, name: str | None = None) -> None:
    """Request a login with a method that was checked before, if ``name`` is given."""
    # Before our own transaction: it commits the error that it finds, which our refusal would roll back.
    refuse_lost_worktree(session_id)
    with session_transaction(session_id, related=("agent_profile", "task", "executor")) as transaction:
        session = transaction.session
        if not may_operate(by, session):
            raise ReadOnly
        if name is None:
            name = _checked_name(published_logins(session), action, method_id)
        assessment = assess_for_start(transaction)
        if assessment.is_running:
            raise AlreadyRunning("The agent is running. Stop the session first: the login starts it again.")
        require_mode(assessment, Mode.AUTO)
        earlier = open_start_intent(session)
        if earlier is not None and earlier.claimed_generation is not None:
            raise AlreadyRunning("The agent is starting. Wait until the start has ended, or stop the session.")
        _write(transaction, by, {"action": str(action), "method": method_id, "name": name})


def _checked_name(published: PublishedLogins, action: LoginAction, method_id: str) -> str:
    """Return the name of the method. Raises Invalid unless the agent publishes it, or offers to log out."""
    if action == LoginAction.LOGOUT:
        if not published.logs_out:
            raise Invalid("The agent does not offer to log out. Log it out with its own command.")
        return ""
    found = next((each for each in login_methods(published, ()) if each["id"] == method_id), None)
    if found is None:
        raise Invalid("The agent has not published this way to log in. Run a test to ask it again.", field="method")
    if found["type"] == TERMINAL:
        raise Invalid("This way to log in runs in a terminal, on the session’s page.", field="method")
    if found["type"] == ENV_VAR:
        raise Invalid("This way to log in needs variables in the agent profile’s environment.", field="method")
    return str(found["name"])


def _write(transaction: SessionTransaction, by: User, login: dict[str, str]) -> None:
    want_running(transaction, by)
    transaction.set_fields(start_attempts=0, next_restart_at=None)
    intent = ensure_start_intent(transaction.session, by, Mode.AUTO)
    intent.by, intent.payload = by, {"mode": Mode.AUTO, "login": login}
    intent.save(update_fields=["by", "payload"])
    about = {**login, "by": by.get_username(), "at": timezone.now().isoformat()}
    metadata = {**transaction.session.metadata, LOGIN_KEY: {**about, "intent": str(intent.id)}}
    transaction.set_fields(metadata=metadata)
    transaction.record_event(LoginRequested(action=login["action"], method=login["method"], by=about["by"]))


def log_in_at(
    user: User,
    kind: AgentType,
    team: Group,
    executor: Executor,
    method_id: str,
    *,
    profile: AgentProfile | None = None,
) -> TaskSession:
    """Log the team's agent in on an executor, in its test session; the login is followed by the test's turn.

    Raises as ``request_login``, and as ``agent_setup.start_test``.
    """
    return _request_at(user, kind, team, executor, action=LoginAction.LOGIN, method_id=method_id, profile=profile)


def log_out_at(
    user: User, kind: AgentType, team: Group, executor: Executor, *, profile: AgentProfile | None = None
) -> TaskSession:
    """Log the team's agent out on an executor, in its test session. Raises as ``log_in_at``."""
    return _request_at(user, kind, team, executor, action=LoginAction.LOGOUT, profile=profile)


def _request_at(
    user: User,
    kind: AgentType,
    team: Group,
    executor: Executor,
    *,
    action: LoginAction,
    method_id: str = "",
    profile: AgentProfile | None = None,
) -> TaskSession:
    # Checked before the test is created, because one that is refused would count as a test.
    require_write(user, team)
    if not may_operate_in(user, team, executor):
        raise ReadOnly("Only administrators and trusted teams can log agents in or out on this executor.")
    # The login runs in a test of the profile whose agent published it.
    profile = profile or agent_setup.profile_for(kind, team)
    name = _checked_name(published_in_test(kind, team, executor, profile), action, method_id)
    repository = agent_setup.repository_for_tests(team)
    with atomic():  # a supervisor must not see the test's start without the login
        session = agent_setup.start_test_in(repository, user, kind, team, executor, profile=profile)
        _request(session.id, user, action, method_id, name)
    return session


def profile_argv(profile: AgentProfile | None, kind: AgentType, runtime: str) -> Sequence[str]:
    """Return the command by which the agent runs: the profile's, or the type's if there is no profile yet."""
    if profile is not None:
        return profile.argv(runtime)
    return kind.argv_on(runtime)


LOGIN_SHARE: Final = 2 / 3
"""What a login may take, as a share of ``KANDEV_START_TIMEOUT``; workspace and handshake have their own time."""
_MAX_LOGIN: Final = 600.0
"""Seconds; agentctl accepts no more."""
COMMAND_LIMIT: Final = 1000
"""Characters of a login command, which is shown in full before it is typed."""
_FRESH: Final = timedelta(hours=1)
"""An unchanged report is not written again within this time: many starts would wait for one row."""
ANSWER_LOST: Final = "The agent runs, but its answer about the login was lost."
_OUTCOME_UNKNOWN: Final = (
    "The answer contains no result of the login. Stop the session, so that its workspace runs the present "
    "version of Kandev, then try again."
)


def login_field(login: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``login`` of the request to start the agent; nothing if the start carries none."""
    if not login:
        return {}
    return {"login": {"action": login["action"], "method": login["method"], "timeout": login_limit(login)}}


def login_limit(login: Mapping[str, Any]) -> float:
    """Return the seconds that the login of a start may take, in addition to the start itself; 0 without one."""
    if login:
        return float(min(_MAX_LOGIN, settings.KANDEV_START_TIMEOUT * LOGIN_SHARE))
    return 0.0


def settle_login(transaction: SessionTransaction, intent_id: uuid.UUID, report: Mapping[str, Any], reason: str) -> None:
    """Write the result of the login that this start carried; nothing if it carried none, or is settled.

    ``report`` is the answer to the start, or what a failed start reported; ``reason`` explains one without an outcome.
    """
    login = transaction.session.metadata.get(LOGIN_KEY)
    if not isinstance(login, dict) or login.get("intent") != str(intent_id) or "state" in login:
        return
    outcome = report.get("login")
    if not isinstance(outcome, dict) or outcome.get("state") not in tuple(LoginState):
        outcome = {"state": LoginState.FAILED, "code": Code.LOGIN_FAILED, "reason": reason or _OUTCOME_UNKNOWN}
    state, code = str(outcome["state"]), str(outcome.get("code") or "")[:64]
    reason = clean_text(outcome.get("reason"), REASON_LIMIT)
    ended = {**login, "state": state, "code": code, "reason": reason, "ended_at": transaction.at.isoformat()}
    transaction.set_fields(metadata={**transaction.session.metadata, LOGIN_KEY: ended})
    transaction.record_event(
        LoginEnded(action=login["action"], method=login["method"], state=state, code=code, reason=reason)
    )
    if state == LoginState.SUCCEEDED and login["action"] == LoginAction.LOGIN:
        on_commit(partial(retry_after_login, transaction.session.id))


def remember_agent(transaction: SessionTransaction, report: Mapping[str, Any]) -> None:
    """Store name, version and ways to log in that the agent reported, at the end of the transaction."""
    identity = agent_identity(report)
    if identity is not None:
        transaction.after_events.append(partial(_write_report, transaction, identity))
        transaction.after_events.append(partial(_write_logins, transaction, report.get("auth")))


def _write_logins(transaction: SessionTransaction, auth: Any) -> None:
    """Store the ways to log in with the session whose agent published them."""
    if not isinstance(auth, dict):
        auth = {}
    methods = parse_auth_methods(auth.get("methods"))
    logs_out = auth.get("logout") is True
    row = agent_settings_of(transaction.session)
    if row is None and not methods and not logs_out:
        return
    row = row or AgentSettings(session=transaction.session)
    if row.auth_at is not None and (row.auth_methods, row.logs_out) == (methods, logs_out):
        return
    row.auth_methods, row.logs_out, row.auth_at = methods, logs_out, transaction.at
    row.save()


def _write_report(transaction: SessionTransaction, identity: Mapping[str, str]) -> None:
    session = transaction.session
    key = {
        "team_id": session.task.team_id,
        "executor_id": session.executor_id,
        "agent_type": session.agent_profile.agent_type,
    }
    known = ReportedAgent.objects.filter(**key).first()
    is_same = known is not None and all(getattr(known, name) == value for name, value in identity.items())
    if known is not None and is_same and transaction.at - known.seen_at < _FRESH:
        return
    ReportedAgent.objects.bulk_create(
        [ReportedAgent(**key, **identity, seen_at=transaction.at)],
        update_conflicts=True,
        unique_fields=["team", "executor", "agent_type"],
        update_fields=[*identity, "seen_at"],
    )
