"""What journal lines about permission requests and questions change: each is opened once, and settled once."""

from __future__ import annotations

from typing import Any, Final

from executors_app.wire import questions
from executors_app.wire.questions import choices_of, fields_of, is_recorded, recorded_answer
from executors_app.wire.questions.schema import parse_stored_question
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import PermissionState, QuestionStatus, RequestKind
from sessions_app.models import PermissionRequest
from sessions_app.permissions.events import PermissionRequested, PermissionResolved
from sessions_app.permissions.models import begin_permission_wait
from sessions_app.permissions.open_requests import complete_tool_call
from sessions_app.permissions.services import option_name, permission_keys, undelivered_content
from sessions_app.stream.conversation import TITLE_LIMIT, ConversationUpdate, JournalLine, JournalUpdate
from sessions_app.stream.rules.tool_calls import key_of_tool
from sessions_app.waits.models import revoke_wait_keys

AGENT_ENDED_REASONS: Final = frozenset({"agent_gone", "stopped"})
"""Reasons for which agentctl closes a request just before it reports the agent's end, which ends the turn too."""
_TEXTS: Final = {
    QuestionStatus.ANSWERED: "Question answered",
    QuestionStatus.DECLINED: "Question declined",
    QuestionStatus.CANCELLED: "Question not answered",
    QuestionStatus.WITHDRAWN: "The agent withdrew its question",
}


def open_request(update: JournalUpdate, line: JournalLine) -> None:
    """Store a permission request or a question of the agent, once, and wait for its answer."""
    transaction, turn = update.transaction, update.transaction.open_turn
    permission_id = str(line["permission_id"])
    options, requested = line.get("options", []), line.get("tool_call", {})
    known = update.conversation.known_tool_fields(key_of_tool(requested))
    tool_call = complete_tool_call(requested, known)
    question: dict[str, Any] = {}
    if "question" in line:
        question = parse_stored_question(line["question"])
    kind = RequestKind.PERMISSION
    if question:
        kind = RequestKind.QUESTION
    contents = {"tool_call": tool_call, "options": options, "question": question}
    request, is_new = PermissionRequest.objects.get_or_create(
        id=permission_id,
        defaults={
            **contents,
            "session": transaction.session,
            "run": turn,
            "kind": kind,
            "requested_at": transaction.at,
            "tool_key": key_of_tool(tool_call),
            "size": sum(map(json_size, contents.values())),
        },
    )
    if not is_new:
        return
    update.open_requests.add(request)
    begin_permission_wait(transaction, permission_id, turn, kind)
    run_id = None
    if turn is not None:
        run_id = str(turn.id)
    transaction.record_event(
        PermissionRequested(
            permission_id=permission_id,
            run_id=run_id,
            tool_call=tool_call,
            options=options,
            question=question or None,
        )
    )


def resolve_request(update: JournalUpdate, line: JournalLine) -> None:
    """Record that the agent has the answer."""
    _settle_request(update, line, PermissionState.RESOLVED.value)


def cancel_request(update: JournalUpdate, line: JournalLine) -> None:
    """Record that a request was closed without an answer."""
    _settle_request(update, line, PermissionState.CANCELLED.value)


def _settle_request(update: JournalUpdate, line: JournalLine, state: str) -> None:
    """Settle a pending request, revoke its key, and resume its turn if it was the last one."""
    transaction = update.transaction
    pending = transaction.session.permissions.filter(state=PermissionState.PENDING)
    request = pending.filter(id=line.get("permission_id")).first()
    if request is None:
        return
    request.state, request.settled_at = state, transaction.at
    request.option_id = str(line.get("option_id") or "")[:128]
    request.reason = str(line.get("reason") or "")[:64]
    if request.option_id == questions.ACCEPT:
        request.answer = recorded_answer(request.question, undelivered_content(request))
    request.sealed_answer = {}
    request.save(update_fields=["state", "settled_at", "option_id", "reason", "answer", "sealed_answer"])
    update.open_requests.remove(request)
    is_question = request.kind == RequestKind.QUESTION
    status = answer = None
    if is_question:
        status, answer = str(request.question_status), request.answer
    transaction.record_event(
        PermissionResolved(
            permission_id=request.id,
            state=state,
            option_id=request.option_id,
            reason=str(line.get("reason", "")),
            status=status,
            answer=answer,
        )
    )
    if is_question:
        add_question_message(update.conversation, request)
    elif state == PermissionState.RESOLVED:
        add_permission_message(update.conversation, request)
    revoke_wait_keys(transaction, str(line.get("reason") or state), wait_id=request.id)
    if (
        transaction.open_turn is not None
        and request.reason not in AGENT_ENDED_REASONS
        and not transaction.session.permissions.filter(state=PermissionState.PENDING).exists()
    ):
        transaction.move_run("resume", reason=request.reason or state)


def _answerer(request: PermissionRequest) -> str:
    """Return the name of the user whose answer was used; empty if there is none."""
    key = permission_keys([request]).get(request.id)
    if key is None:
        return ""
    return key.consumer_name or ""


def add_permission_message(conversation: ConversationUpdate, request: PermissionRequest) -> None:
    """Add the message about an answered permission: the request, the chosen option and who chose it."""
    unnamed = "Unnamed action"
    if request.is_unknown_action:
        unnamed = "Unknown action"
    title = str(request.tool_call.get("title") or unnamed)[:TITLE_LIMIT]
    option = option_name(request, request.option_id)[:TITLE_LIMIT]
    details = {"permission_id": request.id, "title": title, "option_id": request.option_id, "option": option}
    conversation.finish_text()
    message = f"Permission answered: {title} – {option}"
    conversation.add_message("status", message, permission={**details, "by": _answerer(request)})


def add_question_message(conversation: ConversationUpdate, request: PermissionRequest) -> None:
    """Add the message about a settled question: its status, why, who answered, and the answer as far as it is kept."""
    title = str(request.tool_call.get("title") or "A question")[:TITLE_LIMIT]
    status = request.question_status
    answerer = ""
    if status in (QuestionStatus.ANSWERED, QuestionStatus.DECLINED):
        answerer = _answerer(request)
    details: dict[str, Any] = {
        "permission_id": request.id,
        "title": title,
        "status": str(status),
        "reason": request.reason,
        "by": answerer,
        "answer": _shown_answer(request),
        "typed": any(not is_recorded(field) for field in fields_of(request.question).values()),
    }
    if request.question.get("mode") == questions.URL:
        details["url"] = request.question.get("url", "")
    conversation.finish_text()
    conversation.add_message("status", f"{_TEXTS.get(status, status)}: {title}", question=details)


def _shown_answer(request: PermissionRequest) -> list[dict[str, str]]:
    """Return label and words of each field of the answer that is kept, in the form's order."""
    fields = fields_of(request.question)
    return [
        {
            "field": str(field.get("title") or name)[:TITLE_LIMIT],
            "value": _words(field, request.answer[name])[:TITLE_LIMIT],
        }
        for name, field in fields.items()
        if name in request.answer
    ]


def _words(field: Any, value: Any) -> str:
    if isinstance(value, bool):
        if value:
            return "Yes"
        return "No"
    values = value
    if not isinstance(value, list):
        values = [value]
    labels = {choice.value: choice.label for choice in choices_of(field)}
    return ", ".join(labels.get(chosen, str(chosen)) for chosen in values)
