"""What an agent lacks on an executor, tests of an agent in a scratch workspace, and retries after a fix.

A test is an ordinary session of the team's task *Agent tests*: it starts, fails and is shown like any other. The
supervisor stops it when its turn has ended, and at the latest after ``TEST_LIMIT``. Afterwards ``finished_tests``
deletes it, and what it has shown stays in its ``AgentTestResult``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from executors_app.agent_capabilities import own_title_in_team
from executors_app.agents import AgentType
from executors_app.encryption import SecretUnreadable
from executors_app.models import ENV_NAME, AgentProfile, Executor
from executors_app.plugins import UnknownPlugin, agent_type, missing_programs
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import LOCAL
from executors_app.wire.protocol import Code
from sessions_app.accounts.audit import record_change
from sessions_app.accounts.authorization import may_write_session, require_write
from sessions_app.accounts.rate_limits import AttemptLimit
from sessions_app.agents.rules.agent_programs import LOGGED_OUT, NEEDS_PERSON_CODES
from sessions_app.agents.services.profiles import enabled, profiles_of
from sessions_app.board.services.tasks import create_session, create_task
from sessions_app.catalogue.services.repositories import scratch_repository, scratch_root
from sessions_app.kernel.rules.states import OPEN_PROMPT_STATES, DesiredState, RunState, SessionState
from sessions_app.kernel.rules.wording import describe_exit
from sessions_app.kernel.services.errors import Conflict, Invalid, ReadOnly, SessionsError
from sessions_app.models import AgentTestResult, IntentKind, ReportedAgent, Repository, Task, TaskSession, Turn
from sessions_app.prompts.services import resend_after_login
from sessions_app.recovery.rules.resumability import Policy
from sessions_app.sessions.services.intents import request_resume, request_stop
from sessions_app.sessions.services.queries import SECRET_FIELDS
from sessions_app.starts.events import AgentExited
from sessions_app.stream.models import answers_of, texts_of
from sessions_app.turns.events import RunFailed
from sessions_app.turns.models import newest_run

log = logging.getLogger(__name__)

TEST_TASK: Final = "Agent tests"
TEST_PROMPT: Final = "Say hello in one short sentence. Do not use any tools."
TEST_LIMIT: Final = timedelta(minutes=5)
"""Time after which a test is stopped in any case."""
LOGIN_LIMIT: Final = timedelta(minutes=30)
"""Time after which the workspace of a test that waits for a login or a program is closed."""
MAX_TESTS_SHOWN: Final = 200
KEY_LIMIT: Final = 8192
"""Maximum number of characters of a key."""
REPLY_LIMIT: Final = 2000
_test_starts: Final = AttemptLimit("agent-test", 20, 3600)
"""Tests of one user: 20 an hour, because each may cost a turn."""


class ProgramState(StrEnum):
    """Whether an agent's program is on an executor."""

    INCLUDED = "included"
    INSTALLED = "installed"
    MISSING = "missing"
    BY_PROFILE = "by_profile"
    """The profile names the command."""
    UNKNOWN = "unknown"
    """The executor has not been checked yet."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What the agent of a session lacks, by the session's error."""

    code: str
    session: TaskSession | None
    """None: it was a test, which is deleted."""
    at: datetime


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """One agent type on one executor."""

    kind: AgentType
    executor: Executor
    program: ProgramState
    logged_out: Problem | None
    """The newest session that still waits for a login; None: whether it is logged in is not known from a failure."""
    worked_at: datetime | None
    """When a test last completed its turn there."""
    reported: ReportedAgent | None = None
    """What it reported when it was last started there; None: nothing is known."""

    @property
    def needs_version(self) -> str:
        """The required version, if the one that was last started is older; empty: it is not, or not known."""
        known = self.reported
        if known:
            return self.kind.required_version(known.name, known.version)
        return ""


def agent_places(
    user: User, kinds: Sequence[AgentType], executors: Sequence[Executor], team: Group | None = None
) -> list[AgentPlace]:
    """Return what is known of each agent type on each executor; a constant number of queries.

    It is known from the user's teams; what the agent reported, from ``team`` alone if that is given.
    """
    results = {(row.agent_type, row.executor_id): row for row in AgentTestResult.objects.visible_to(user)}
    problems, worked, reports = _problems(user, results), _completed_tests(user, results), _reports(user, team)
    keys = [(kind, executor, (kind.name, executor.id)) for kind in kinds for executor in executors]
    return [
        _place(kind, executor, problems.get(key), worked.get(key), reports.get(key)) for kind, executor, key in keys
    ]


def _reports(user: User, team: Group | None) -> Mapping[tuple[str, uuid.UUID], ReportedAgent]:
    """Return the newest report by agent type and executor."""
    rows = ReportedAgent.objects.visible_to(user).order_by("seen_at")
    if team is not None:
        rows = rows.filter(team=team)
    return {(row.agent_type, row.executor_id): row for row in rows}


def _place(
    kind: AgentType,
    executor: Executor,
    problem: Problem | None,
    worked_at: datetime | None,
    reported: ReportedAgent | None,
) -> AgentPlace:
    if problem is not None and worked_at is not None and worked_at > problem.at:
        problem = None
    program = _program_state(kind, executor, problem, worked_at)
    if problem is not None and problem.code == Code.AUTH_REQUIRED:
        logged_out = problem
    else:
        logged_out = None
    return AgentPlace(kind, executor, program, logged_out, worked_at, reported)


def _program_state(
    kind: AgentType, executor: Executor, problem: Problem | None, worked_at: datetime | None
) -> ProgramState:
    if not kind.needs:
        if kind.argv:
            return ProgramState.INCLUDED
        return ProgramState.BY_PROFILE
    if executor.runtime == LOCAL:
        if missing_programs(kind):
            return ProgramState.MISSING
        return ProgramState.INSTALLED
    if problem is not None and problem.code == Code.PROGRAM_MISSING:
        return ProgramState.MISSING
    if worked_at is not None or problem is not None:
        return ProgramState.INSTALLED
    return ProgramState.UNKNOWN


_Results = Mapping[tuple[str, uuid.UUID], AgentTestResult]
"""By agent type and executor."""


def _problems(user: User, results: _Results) -> Mapping[tuple[str, uuid.UUID], Problem]:
    """Return by agent type and executor the newest session that waits for a program or a login, or else the test."""
    rows = waiting_for_a_person(TaskSession.objects.visible_to(user)).order_by("updated_at")
    rows = rows.select_related("agent_profile", "task", "executor").defer(*SECRET_FIELDS)
    tested = {
        key: Problem(row.error_code, None, row.started_at)
        for key, row in results.items()
        if row.error_code in NEEDS_PERSON_CODES
    }
    waiting = {
        (row.agent_profile.agent_type, row.executor_id): Problem(row.error_code, row, row.updated_at)
        for row in rows[:MAX_TESTS_SHOWN]
    }
    return {**tested, **waiting}


def waiting_for_a_person(sessions: QuerySet[TaskSession]) -> QuerySet[TaskSession]:
    """Filter the sessions that should run and whose agent is missing or logged out."""
    return sessions.filter(
        state=SessionState.ERROR, error_code__in=NEEDS_PERSON_CODES, desired_state=DesiredState.RUNNING
    )


def _completed_tests(user: User, results: _Results) -> Mapping[tuple[str, uuid.UUID], datetime]:
    runs = Turn.objects.filter(session__in=test_sessions().filter(pk__in=TaskSession.objects.visible_to(user)))
    rows = runs.filter(state=RunState.COMPLETED).order_by("-ended_at")
    newest = {key: row.worked_at for key, row in results.items() if row.worked_at is not None}
    for name, executor, at in rows.values_list(
        "session__agent_profile__agent_type", "session__executor_id", "ended_at"
    )[:MAX_TESTS_SHOWN]:
        if at is not None:
            newest[name, executor] = max(at, newest.get((name, executor), at))
    return newest


def test_sessions() -> QuerySet[TaskSession]:
    """Return the sessions that are tests."""
    rows: QuerySet[TaskSession] = TaskSession.objects.filter(task__repository__path__startswith=f"{scratch_root()}/")
    return rows


# --- profiles and keys ---


def profile_for(kind: AgentType, team: Group) -> AgentProfile | None:
    """Return the profile with which the team runs this type: its own, else a shared one; None if there is none."""
    rows = enabled(profiles_of(team.pk)).filter(agent_type=kind.name).order_by("created_at", "id")
    return rows.filter(team=team).first() or rows.first()


def ensure_profile(user: User, kind: AgentType, team: Group) -> AgentProfile:
    """Return the team's profile of this type, creating one if the user is staff. Raises ReadOnly, Invalid."""
    found = profile_for(kind, team)
    if found is not None:
        return found
    if not kind.argv:
        raise Invalid("A profile of this type names its own command. Administrators add it in the settings.")
    if not user.is_staff:
        raise ReadOnly("There is no profile for this agent yet. Ask an administrator to create one.")
    with transaction.atomic():
        made: AgentProfile = AgentProfile.objects.create(name=kind.title, agent_type=kind.name, team=team)
        record_change(user, made, "Added.")
    return made


def store_key(user: User, kind: AgentType, team: Group, variable: str, value: str) -> AgentProfile:
    """Store a key, encrypted, in the environment of the team's own profile of this type; only staff may do that.

    A profile that all teams share is left alone: the team gets one of its own. Raises ReadOnly, Invalid.
    """
    if not user.is_staff:
        raise ReadOnly("Only administrators can store keys.")
    if not ENV_NAME.fullmatch(variable):
        raise Invalid(f"{variable!r} is not a valid variable name.", field="variable")
    if not value or len(value) > KEY_LIMIT or not value.isprintable():
        raise Invalid(f"A key must have 1 to {KEY_LIMIT} printable characters.", field="value")
    with transaction.atomic():
        rows = enabled(AgentProfile.objects.filter(agent_type=kind.name, team=team)).order_by("created_at", "id")
        profile = rows.select_for_update().first() or AgentProfile(name=kind.title, agent_type=kind.name, team=team)
        try:
            profile.env = {**profile.env, variable: value}
        except SecretUnreadable as error:
            raise Invalid("The stored environment cannot be decrypted. Set it again in the settings.") from error
        profile.save()
        record_change(user, profile, "Changed env.")
    return profile


# --- tests ---


def start_test(
    user: User, kind: AgentType, team: Group, executor: Executor, *, profile: AgentProfile | None = None
) -> TaskSession:
    """Start a test of ``profile``, by default the team's of this type, or return the one that still runs.

    Raises ReadOnly, Invalid, Conflict, Throttled, and what creating a session raises.
    """
    require_write(user, team)
    return start_test_in(repository_for_tests(team), user, kind, team, executor, profile=profile)


def start_test_in(
    repository: Repository,
    user: User,
    kind: AgentType,
    team: Group,
    executor: Executor,
    *,
    profile: AgentProfile | None = None,
) -> TaskSession:
    """Do the same in the team's ``repository_for_tests``, which is created before any transaction."""
    require_write(user, team)
    profile = profile or ensure_profile(user, kind, team)
    running = _of_agent(team, kind, executor, profile).filter(desired_state=DesiredState.RUNNING).first()
    if running is not None:
        return running
    _test_starts.require(str(user.pk))
    with transaction.atomic():
        if not Repository.objects.select_for_update().filter(pk=repository.pk).exists():
            raise Conflict("The workspace of earlier tests was just deleted. Test again.")
        task = _test_task(user, team, repository)
        return create_session(user, task, profile, executor, prompt=TEST_PROMPT, policy=Policy.MANUAL)


def newest_test(
    kind: AgentType, team: Group, executor: Executor, profile: AgentProfile | None = None
) -> TaskSession | None:
    """Return the team's newest test of this profile, or else of this type, on this executor."""
    return _of_agent(team, kind, executor, profile).select_related("task", "agent_profile", "executor").first()


def _of_agent(team: Group, kind: AgentType, executor: Executor, profile: AgentProfile | None) -> QuerySet[TaskSession]:
    rows = test_sessions().filter(task__team=team, agent_profile__agent_type=kind.name, executor=executor)
    if profile is not None:
        rows = rows.filter(agent_profile=profile)
    return rows.order_by("-created_at")


def repository_for_tests(team: Group) -> Repository:
    """Return the team's scratch repository, created on its first use. Raises Invalid."""
    try:
        return scratch_repository(team)
    except (ExecutorError, OSError) as error:
        log.exception("the scratch repository of team %s could not be created", team.pk)
        raise Invalid("The scratch repository could not be created. The server log has the details.") from error


def _test_task(user: User, team: Group, repository: Repository) -> Task:
    """Return the team's task for tests; a new one if the last one has ended."""
    tasks = Task.objects.filter(team=team, repository=repository, title=TEST_TASK, archived_at=None)
    tasks = tasks.order_by("-created_at")
    found = next((task for task in tasks if not task.end), None)
    return found or create_task(user, {"title": TEST_TASK, "team": team, "repository": repository})


@dataclass(frozen=True, slots=True)
class TestResult:
    """What a test has shown so far."""

    session: TaskSession | None
    """None: it is deleted."""
    started_at: datetime
    state: str
    """``running``, ``passed``, ``failed`` or ``stopped``."""
    reply: str = ""
    seconds: float | None = None
    """How long the turn took; None: it has not ended, or never began."""
    error: str = ""
    """Why it failed, with the end of the program's error output if there was one."""
    exit: str = ""
    """How the agent ended; empty: it is not known to have ended."""


def newest_result(
    kind: AgentType, team: Group, executor: Executor, profile: AgentProfile | None = None
) -> TestResult | None:
    """Return what the newest test has shown so far; None: the agent has not been tested here."""
    newest = newest_evidence(kind, team, executor, profile)
    if newest is None:
        return None
    if isinstance(newest, TaskSession):
        return test_result(newest)
    return TestResult(None, newest.started_at, newest.state, newest.reply, newest.seconds, newest.error, newest.exit)


def newest_evidence(
    kind: AgentType, team: Group, executor: Executor, profile: AgentProfile | None = None
) -> TaskSession | AgentTestResult | None:
    """Return the team's newest test there, or what it has shown if it is deleted; None: there was none.

    With ``profile``, only its tests count; else all of this type. An earlier test whose session somebody went on with
    is still there, but says less than a later result.
    """
    session = newest_test(kind, team, executor, profile)
    rows = AgentTestResult.objects.filter(team=team, executor=executor, agent_type=kind.name)
    if profile is not None:
        rows = rows.filter(profile=profile)
    row = rows.order_by("-started_at").first()
    if session is None or (row is not None and row.started_at > session.created_at):
        return row
    return session


def test_result(session: TaskSession) -> TestResult:
    """Return the result of a test, from what its session has recorded."""
    run = newest_run(session)
    reply = _reply(run)
    seconds = None
    if run is not None and run.ended_at is not None:
        seconds = (run.ended_at - run.started_at).total_seconds()
    if run is not None and run.state == RunState.COMPLETED:
        return TestResult(session, session.created_at, "passed", reply, seconds)
    if seconds is not None or session.state in (SessionState.ERROR, SessionState.FAILED):
        error = session.error_message or _last_error(session)
        return TestResult(session, session.created_at, "failed", reply, seconds, error, _exit(session))
    if session.desired_state == DesiredState.RUNNING:
        return TestResult(session, session.created_at, "running", reply)
    return TestResult(session, session.created_at, "stopped", reply)


def _reply(turn: Turn | None) -> str:
    if turn is None:
        return ""
    rows = list(answers_of(turn)[:20])
    return "".join(texts_of(rows).values())[:REPLY_LIMIT]


def _last_error(session: TaskSession) -> str:
    return str(_newest_payload(session, RunFailed.name).get("error_message") or "")


def _exit(session: TaskSession) -> str:
    code = _newest_payload(session, AgentExited.name).get("exit_code")
    if isinstance(code, int):
        return describe_exit(code)
    return ""


def _newest_payload(session: TaskSession, name: str) -> Mapping[str, Any]:
    row = session.events.filter(name=name).order_by("-seq").values_list("payload", flat=True).first()
    return row or {}


def stop_finished_tests() -> int:
    """Stop every test whose turn has ended or whose time is over; return how many."""
    now, stopped = timezone.now(), 0
    for session in test_sessions().filter(desired_state=DesiredState.RUNNING).order_by("created_at")[:MAX_TESTS_SHOWN]:
        if _is_over(session, now):
            request_stop(session.id, None)
            stopped += 1
    return stopped


def _is_over(session: TaskSession, now: datetime) -> bool:
    if now - session.created_at > LOGIN_LIMIT:
        return True
    run = newest_run(session)
    if run is not None and run.ended_at is None:
        return now - run.begun_at > TEST_LIMIT
    if run is not None and not session.prompts.filter(state__in=OPEN_PROMPT_STATES).exists():
        return True
    if session.error_code in NEEDS_PERSON_CODES:
        return False
    newest_start = session.intents.filter(kind=IntentKind.START).order_by("-created_at").first()
    if newest_start is not None:
        return now - newest_start.created_at > TEST_LIMIT
    return now - session.created_at > TEST_LIMIT


# --- retries after a fix ---


def agent_fix(session: TaskSession, *, wants_login: bool) -> dict[str, str] | None:
    """Return how the session's agent is set up: name and title of its type, and its login command if it needs one.

    None for a type that no longer exists.
    """
    try:
        kind = agent_type(session.agent_profile.agent_type)
    except UnknownPlugin:
        return None
    fix = {"name": kind.name, "title": own_title_in_team(session.agent_profile, session.task.team_id), "login": ""}
    if wants_login:
        fix["login"] = kind.login
    return fix


def retry_after_login(session_id: uuid.UUID) -> int:
    """Try the team's sessions again, once, that wait for a login of this session's agent on its executor.

    Called when a login there has ended, whatever its exit code; returns how many starts and prompts were requested.
    """
    rows = TaskSession.objects.filter(id=session_id).select_related("agent_profile", "task").defer(*SECRET_FIELDS)
    session = rows.first()
    if session is None:
        return 0
    alike = TaskSession.objects.filter(
        task__team_id=session.task.team_id,
        executor_id=session.executor_id,
        agent_profile__agent_type=session.agent_profile.agent_type,
        desired_state=DesiredState.RUNNING,
    )
    starts = waiting_for_a_person(alike).filter(Q(id=session.id) | Q(error_code=LOGGED_OUT))
    refused = alike.filter(
        state=SessionState.WAITING_FOR_INPUT, runs__state=RunState.FAILED, runs__reason=LOGGED_OUT
    ).exclude(pk__in=test_sessions())

    def may_start(row: uuid.UUID) -> bool:
        # A person has logged in at this session; the others start by themselves.
        return row == session_id or has_owner_in_team(row)

    resumed = sum(map(retry_session, filter(may_start, starts.values_list("id", flat=True))))
    resent = filter(may_start, set(refused.values_list("id", flat=True)))
    return resumed + sum(retry_session(row, resend_after_login) for row in resent)


def has_owner_in_team(session_id: uuid.UUID) -> bool:
    """Whether the owner of a session may still write in its team; no other session is started automatically."""
    session = TaskSession.objects.filter(id=session_id).select_related("owner", "task").first()
    return session is not None and (session.owner is None or may_write_session(session.owner, session))


def retry_session(session_id: uuid.UUID, retry: Callable[[uuid.UUID, User | None], Any] = request_resume) -> bool:
    """Request a start as *Try again* does, or another ``retry``.

    Returns False if the session refuses it, or if ``retry`` found nothing to do.
    """
    try:
        return retry(session_id, None) is not False
    except SessionsError as error:
        log.info("session %s is not tried again: %s", session_id, error.message)
        return False
