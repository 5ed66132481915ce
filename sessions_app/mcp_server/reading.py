"""The tools that only read: sessions, conversations, tasks, and what a new task can be given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from executors_app.models import PROFILE_SECRETS
from sessions_app.accounts.authorization import writable_teams
from sessions_app.agents.services.profiles import enabled, visible_profiles
from sessions_app.board.services.board import session_rows
from sessions_app.board.services.tasks import visible_tasks
from sessions_app.catalogue.services.offers import offered_executors
from sessions_app.catalogue.services.repositories import without_scratch
from sessions_app.kernel.rules.states import OPEN_PROMPT_STATES, PermissionState, PromptState
from sessions_app.kernel.services.errors import NotFound
from sessions_app.mcp_server import arguments, results
from sessions_app.models import Message, PermissionRequest, Repository, Task, TaskSession, WaitKey, texts_of
from sessions_app.permissions.services import permission_keys
from sessions_app.search.services import Order, SearchFilter, SearchResult, search
from sessions_app.sessions.rules.session_status import (
    ChoiceStatus,
    FirstTurnStatus,
    ReceiptStatus,
    ResumeCostStatus,
    SessionStatus,
)
from sessions_app.sessions.rules.situation_facts import Situation, SituationFacts
from sessions_app.sessions.rules.situations import situation, status_label
from sessions_app.sessions.services.queries import visible_sessions
from sessions_app.sessions.services.situations import add_page_facts
from sessions_app.sessions.services.status import read_session
from sessions_app.stream.rules.tool_calls import REVIEW_LIMIT, UNKNOWN_ACTION
from sessions_app.waits.rules.wait_keys import WaitKeyState

DETAILS_LIMIT: Final = 2_000
"""Maximum number of characters of the details of a message or a permission request."""
CONVERSATION_LIMIT: Final = 50_000
"""Maximum characters of one page of a conversation. Escaped twice, they still fit the 1 MiB that clients accept."""
ROW_LIMIT: Final = 200
"""Maximum number of prompts and of permission requests of a session, and of choices of one kind."""


def visible_session(user: User, session_id: UUID) -> TaskSession:
    """Return a session of the user's teams. Raises NotFound for any other."""
    found: TaskSession | None = visible_sessions(user).filter(id=session_id).first()
    if found is None:
        raise NotFound("There is no such session.")
    return found


class SessionView(NamedTuple):
    """A session's status as in the API, and its situation as its page describes it."""

    status: SessionStatus
    facts: SituationFacts
    situation: Situation


def view_session(session: TaskSession, user: User) -> SessionView:
    """Load the status and the situation of a session."""
    reading = read_session(session, user)
    facts = add_page_facts(session, reading.facts)
    return SessionView(reading.status, facts, situation(facts))


def list_sessions(user: User, values: arguments.ListSessionsArguments) -> results.SessionPage:
    """Return a page of the sessions of the user's teams."""
    rows = visible_sessions(user).order_by("-created_at", "id")
    if values.task_id is not None:
        rows = rows.filter(task_id=values.task_id)
    found, count, next_page = _page(rows, values)
    labels = {key: status_label(row.facts).text for key, row in session_rows(found, user).items()}
    sessions = [
        results.SessionSummary(**_summary(session, labels[session.id])) for session in found if session.id in labels
    ]
    return results.SessionPage(count=count, next_page=next_page, sessions=sessions)


def get_session(user: User, values: arguments.SessionArguments) -> results.SessionDetails:
    """Return one session."""
    session = visible_session(user, values.session_id)
    status, facts, shown = view_session(session, user)
    unfinished = session.prompts.filter(state__in=[*OPEN_PROMPT_STATES, PromptState.HELD, PromptState.INTERRUPTED])
    receipt = None
    if status.latest_receipt is not None:
        receipt = _receipt(status.latest_receipt)
    return results.SessionDetails(
        **_summary(session, status_label(facts).text),
        status_sentence=shown.text,
        next_step=shown.next_step,
        choices=[_recovery_choice(each) for each in status.choices],
        derived_status=status.derived_status,
        executor=session.executor.name,
        runtime=session.executor.runtime,
        is_agent_running=status.is_agent_running,
        needs_attention=status.needs_attention,
        is_resumable=status.is_resumable,
        resume_reason=status.resume_reason,
        error_code=status.error_code,
        error_message=status.error_message,
        last_seq=session.last_seq,
        open_prompts=[
            results.OpenPrompt(message_id=row.message_id, state=row.state, created_at=row.created_at)
            for row in unfinished[:ROW_LIMIT]
        ],
        permissions=pending_permissions(session),
        latest_receipt=receipt,
        resume_cost=_resume_cost(status.resume_cost),
        can_steer=status.can_steer,
    )


def _recovery_choice(choice: ChoiceStatus) -> results.RecoveryChoice:
    return results.RecoveryChoice(choice=choice["choice"], text=choice["text"], mode=choice["mode"])


def _receipt(receipt: ReceiptStatus) -> results.Receipt:
    return results.Receipt(
        kind=receipt["kind"],
        verified=receipt["verified"],
        strategy=receipt["strategy"],
        reason=receipt["reason"],
        created_at=datetime.fromisoformat(receipt["created_at"]),
        first_turn=_first_turn(receipt["first_turn"]),
    )


def _time(text: str | None) -> datetime | None:
    """Return a time of the status; None stays None."""
    if text is None:
        return None
    return datetime.fromisoformat(text)


def _first_turn(turn: FirstTurnStatus | None) -> results.FirstTurn | None:
    if turn is None:
        return None
    usage = turn["usage"]
    return results.FirstTurn(
        message_id=turn["message_id"],
        state=turn["state"],
        ended_at=_time(turn["ended_at"]),
        usage=None if usage is None else dict(usage),
    )


def _resume_cost(cost: ResumeCostStatus | None) -> results.ResumeCost | None:
    if cost is None:
        return None
    return results.ResumeCost(
        text=cost["text"],
        strategy=cost["resume_strategy"],
        context_tokens=cost["context_tokens"],
        context_size=cost["context_size"],
        context_reported_at=_time(cost["context_reported_at"]),
        history_characters=cost["history_characters"],
        history_estimated_tokens=cost["history_estimated_tokens"],
        last_turn_ended_at=_time(cost["last_turn_ended_at"]),
    )


def pending_permissions(session: TaskSession) -> list[results.Permission]:
    """Return the permission requests of a session that wait for an answer, oldest first.

    One whose answer is on its way to the agent is still pending, but waits for none.
    """
    requests = list(session.permissions.filter(state=PermissionState.PENDING)[:ROW_LIMIT])
    keys, now = permission_keys(requests), timezone.now()
    permissions = []
    for request in requests:
        key = keys.get(request.id)
        if key is None or key.state(now) is not WaitKeyState.CONSUMED:
            permissions.append(_permission(request, key))
    return permissions


def _permission(request: PermissionRequest, key: WaitKey | None) -> results.Permission:
    title = cut(_text(request.tool_call.get("title")), REVIEW_LIMIT)
    if request.is_unknown_action:
        title = UNKNOWN_ACTION
    expires_at = None
    if key is not None:
        expires_at = key.expires_at
    return results.Permission(
        permission_id=request.id,
        title=title,
        tool_kind=_text(request.tool_call.get("tool_kind"))[:DETAILS_LIMIT],
        details=_details(request.tool_call, REVIEW_LIMIT),
        options=_offered_options(request),
        question=request.question or None,
        expires_at=expires_at,
    )


def _offered_options(request: PermissionRequest) -> list[results.PermissionOption]:
    """Return the options of a request; only those that reject it, if its details are too long to be shown in full.

    For an action that the agent does not describe, those that reject it come first.
    """
    options = [
        results.PermissionOption(**{name: _text(option.get(name)) for name in ("option_id", "name", "kind")})
        for option in request.offered_options
    ]
    is_whole = len(json.dumps(request.tool_call, ensure_ascii=False, default=str)) <= REVIEW_LIMIT
    if request.is_unknown_action:
        options.sort(key=lambda option: not option.kind.startswith("reject"))
    return [option for option in options if is_whole or option.kind.startswith("reject")]


def search_texts(user: User, values: arguments.SearchArguments) -> results.SearchPage:
    """Return a page of the texts that match, in the conversations and tasks of the user's teams."""
    where, order = SearchFilter(values.session_id, values.task_id), Order.BEST if values.best_first else Order.NEWEST
    page = search(user, values.words, where, order, number=values.page, size=values.page_size)
    return results.SearchPage(
        count=page.count,
        next_page=page.next_page,
        found=[_found_text(result) for result in page.results],
        sessions_behind=page.index.behind,
    )


def _found_text(result: SearchResult) -> results.FoundText:
    document = result.document
    return results.FoundText(
        kind=document.kind,
        task_id=document.task_id,
        task_title=document.task.title,
        session_id=document.session_id,
        seq=document.seq,
        author=result.author,
        at=document.at,
        snippet="".join(piece.text for piece in result.snippet),
    )


def read_conversation(user: User, values: arguments.ReadConversationArguments) -> results.Conversation:
    """Return messages of a conversation: those after a seq, or the newest ones."""
    session = visible_session(user, values.session_id)
    messages: QuerySet[Message] = session.messages.all()
    if values.after is None:
        rows = list(messages.order_by("-seq")[: values.limit])
    else:
        rows = list(messages.filter(seq__gt=values.after).order_by("seq")[: values.limit])
    texts = texts_of(rows)
    shown: list[results.ConversationMessage] = []
    size = 0
    for row in rows:
        message = _message(row, texts[row.id], values.text_limit)
        size += len(message.text) + len(message.details)
        if shown and size > CONVERSATION_LIMIT:
            break
        shown.append(message)
    if values.after is None:
        shown.reverse()
    last = values.after or 0
    if shown:
        last = shown[-1].seq
    return results.Conversation(
        messages=shown,
        next_after=last,
        more=messages.filter(seq__gt=last).exists(),
        earlier=bool(shown) and messages.filter(seq__lt=shown[0].seq).exists(),
    )


def list_tasks(user: User, values: arguments.ListTasksArguments) -> results.TaskPage:
    """Return a page of the tasks of the user's teams."""
    rows = visible_tasks(user).filter(archived_at__isnull=not values.archived).order_by("-created_at", "id")
    found, count, next_page = _page(rows, values)
    return results.TaskPage(count=count, next_page=next_page, tasks=[_task(row) for row in found])


def list_start_options(user: User, values: arguments.Arguments) -> results.StartOptions:
    """Return the teams the user can write in, and the repositories, agents and executors a task can use there."""
    teams = list(writable_teams(user).order_by("name")[:ROW_LIMIT])
    ids = [team.pk for team in teams]
    profiles = enabled(visible_profiles(user)).defer(*PROFILE_SECRETS).order_by("name")
    opened = Repository.objects.visible_to(user).filter(team_id__in=ids).order_by("name")
    repositories = without_scratch(opened)
    return results.StartOptions(
        teams=[results.Team(id=team.pk, name=team.name) for team in teams],
        repositories=[_choice(row, row.path, row.team_id) for row in repositories[:ROW_LIMIT]],
        agent_profiles=[_choice(row, row.agent_type, row.team_id) for row in profiles[:ROW_LIMIT]],
        executors=[_choice(row, row.runtime, None) for row in offered_executors()[:ROW_LIMIT]],
    )


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text, with an ellipsis if it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def _page(rows: QuerySet[Any], values: arguments.PageArguments) -> tuple[list[Any], int, int | None]:
    """Return the rows of a page, the number of all rows, and the next page's number if there is one."""
    count = rows.count()
    end = values.page * values.page_size
    next_page = None
    if end < count:
        next_page = values.page + 1
    return list(rows[end - values.page_size : end]), count, next_page


def _summary(session: TaskSession, status: str) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "task_id": session.task_id,
        "task_title": session.task.title,
        "agent_profile": session.agent_profile.name,
        "agent_type": session.agent_profile.agent_type,
        "state": session.state,
        "status": status,
        "work_state": session.work_state,
        "worktree_branch": session.worktree_branch,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    }


def _task(row: Any) -> results.TaskSummary:
    """Return a task from ``visible_tasks``."""
    task: Task = row
    repository = ""
    if task.repository is not None:
        repository = task.repository.name
    return results.TaskSummary(
        task_id=task.id,
        title=task.title,
        state=task.state,
        agent_work_state=row.agent_work_state,
        team=task.team_id,
        team_name=task.team.name,
        repository=repository,
        base_branch=task.base_branch,
        archived=task.archived_at is not None,
        created_at=task.created_at,
    )


def _message(row: Message, text: str, limit: int) -> results.ConversationMessage:
    details = ""
    if row.role in ("tool", "status"):
        details = _details(row.payload)
    return results.ConversationMessage(
        seq=row.seq,
        role=row.role,
        text=cut(text, limit),
        text_length=len(text),
        tool_title=_text(row.payload.get("title"))[:DETAILS_LIMIT],
        tool_status=_text(row.payload.get("status"))[:DETAILS_LIMIT],
        details=details,
        complete=row.complete,
        created_at=row.created_at,
    )


def _details(payload: Mapping[str, Any], limit: int = DETAILS_LIMIT) -> str:
    """Return the details of a payload, without its title and status, as JSON of bounded length."""
    more = {name: value for name, value in payload.items() if name not in ("title", "status")}
    if more:
        return cut(json.dumps(more, ensure_ascii=False, default=str), limit)
    return ""


def _text(value: Any) -> str:
    """Return a value from an agent as text: it may be of any type."""
    if value is None:
        return ""
    return str(value)


def _choice(row: Any, kind: str, team: int | None) -> results.Choice:
    return results.Choice(id=row.id, name=row.name, kind=kind, team=team)
