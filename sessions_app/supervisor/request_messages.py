"""The messages that the conversation keeps of permissions and questions: what was asked, and how it ended."""

from __future__ import annotations

from typing import Any, Final

from executors_app.agentctl import questions
from executors_app.agentctl.questions import choices_of, fields_of, is_recorded
from sessions_app.domain.states import QuestionStatus
from sessions_app.models import PermissionRequest
from sessions_app.services.waits import option_name, permission_tokens
from sessions_app.supervisor.conversation import ConversationUpdate

TITLE_LIMIT: Final = 500
"""Characters of a title or option that the message about an answered request repeats."""
_TEXTS: Final = {
    QuestionStatus.ANSWERED: "Question answered",
    QuestionStatus.DECLINED: "Question declined",
    QuestionStatus.CANCELLED: "Question not answered",
    QuestionStatus.WITHDRAWN: "The agent withdrew its question",
}


def _answerer(asked: PermissionRequest) -> str:
    """Return the name of the user whose answer was used; empty if there is none."""
    token = permission_tokens([asked]).get(asked.id)
    return token.consumed_by.get_username() if token and token.consumed_by else ""


def add_permission_message(conversation: ConversationUpdate, asked: PermissionRequest) -> None:
    """Add the message about an answered permission: the request, the chosen option and who chose it."""
    title = str(asked.tool_call.get("title") or "Do something")[:TITLE_LIMIT]
    option = option_name(asked, asked.option_id)[:TITLE_LIMIT]
    told = {"permission_id": asked.id, "title": title, "option_id": asked.option_id, "option": option}
    conversation.finish_text()
    message = f"Permission answered: {title} – {option}"
    conversation.add_message("status", message, permission={**told, "by": _answerer(asked)})


def add_question_message(conversation: ConversationUpdate, asked: PermissionRequest) -> None:
    """Add the message about a settled question: its status, why, who answered, and the answer as far as it is kept."""
    title = str(asked.tool_call.get("title") or "A question")[:TITLE_LIMIT]
    status = asked.question_status
    told: dict[str, Any] = {
        "permission_id": asked.id,
        "title": title,
        "status": str(status),
        "reason": asked.reason,
        "by": _answerer(asked) if status in (QuestionStatus.ANSWERED, QuestionStatus.DECLINED) else "",
        "answer": _shown_answer(asked),
        "typed": any(not is_recorded(field) for field in fields_of(asked.question).values()),
    }
    if asked.question.get("mode") == questions.URL:
        told["url"] = asked.question.get("url", "")
    conversation.finish_text()
    conversation.add_message("status", f"{_TEXTS.get(status, status)}: {title}", question=told)


def _shown_answer(asked: PermissionRequest) -> list[dict[str, str]]:
    """Return label and words of each field of the answer that is kept, in the form's order."""
    fields = fields_of(asked.question)
    return [
        {
            "field": str(field.get("title") or name)[:TITLE_LIMIT],
            "value": _words(field, asked.answer[name])[:TITLE_LIMIT],
        }
        for name, field in fields.items()
        if name in asked.answer
    ]


def _words(field: Any, value: Any) -> str:
    labels = {choice.value: choice.label for choice in choices_of(field)}
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return ", ".join(labels.get(one, str(one)) for one in (value if isinstance(value, list) else [value]))
