"""Questions of agents as forms: their fields on the page, and what a person filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.http import QueryDict

from executors_app.wire import questions
from executors_app.wire.questions import choices_of, fields_of, required_of
from executors_app.wire.questions.schema import check_url
from sessions_app.accounts.requests import UserHttpRequest
from sessions_app.kernel.services.errors import InvalidAnswer
from sessions_app.models import PermissionRequest, TaskSession
from sessions_app.permissions.services import answer_permission

MAX_RADIOS: Final = 8
"""A field with more choices is a list to open."""
_SHORT_TEXT: Final = 200
"""Maximum number of characters of a text that gets one line."""
_INPUT_TYPES: Final = {"email": "email", "uri": "url", "date": "date"}
_FORMAT_HINTS: Final = {"date-time": "A date and time with its zone, such as 2026-12-31T12:00:00Z."}


class WrongAnswer(InvalidAnswer):
    """The answer does not fit the question. Correct the fields that are marked."""

    def __init__(self, permission: PermissionRequest, content: Mapping[str, Any], error: InvalidAnswer):
        super().__init__(error.message, **error.details)
        self.permission, self.content = permission, content
        self.problems = {name: str(problem["message"]) for name, problem in error.details["fields"].items()}

    @property
    def by_input(self) -> dict[str, str]:
        """The problems by the name of the input."""
        names = {name: input_name(number) for number, name in enumerate(fields_of(self.permission.question))}
        return {names[name]: problem for name, problem in self.problems.items() if name in names}


def input_name(number: int) -> str:
    """Return the name of a field's input. The agent's own names could clash with those of the page."""
    return f"field-{number}"


def answer_from_page(row: TaskSession, request: UserHttpRequest) -> None:
    """Answer a permission or a question as its form on the page was sent; raises WrongAnswer, else as the service."""
    posted = request.POST
    permission_id, option_id = str(posted.get("permission_id", "")), str(posted.get("option_id", ""))
    permission = row.permissions.filter(id=permission_id).first()
    content = {}
    if permission is not None and option_id == questions.ACCEPT:
        content = read_form(permission.question, posted)
    secret = str(posted.get("resume_token", ""))
    try:
        answer_permission(row.id, permission_id, option_id, secret, request.user, content=content)
    except InvalidAnswer as error:
        if permission is None:
            raise
        raise WrongAnswer(permission, content, error) from error


def read_form(question: Mapping[str, Any], posted: QueryDict) -> dict[str, Any]:
    """Return the answer in a sent form, without the fields that were left empty."""
    content = {}
    for number, (name, field) in enumerate(fields_of(question).items()):
        value = _read_input(field, input_name(number), posted)
        if value is not None:
            content[name] = value
    return content


def _read_input(field: Mapping[str, Any], name: str, posted: QueryDict) -> Any:
    text = str(posted.get(name, "")).replace("\r\n", "\n")
    match field["type"]:
        case "boolean":
            return name in posted
        case "array":
            return posted.getlist(name) or None
        case "integer" | "number":
            if text.strip():
                return _number(text.strip())
            return None
    return text or None


def _number(text: str) -> float | int | str:
    """Return the number; any other text stays as it is, so that the check names it."""
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text


def question_context(
    question: Mapping[str, Any], content: Mapping[str, Any] | None = None, problems: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what the templates show of a question: its fields, or its link.

    ``content`` is an answer that was refused, for ``problems`` by field; None: the agent's defaults.
    """
    if question.get("mode") == questions.URL:
        return {"message": question["message"], "link": _link_context(question["url"])}
    required = required_of(question)
    fields = []
    for number, (name, field) in enumerate(fields_of(question).items()):
        value = field.get("default")
        if content is not None:
            value = content.get(name)
        context = _field_context(field, input_name(number), value)
        context["label"] = field.get("title") or name
        context["required"] = name in required
        context["problem"] = (problems or {}).get(name, "")
        fields.append(context)
    return {
        "message": question["message"],
        "description": question["schema"].get("description", ""),
        "fields": fields,
    }


def _link_context(url: str) -> dict[str, Any]:
    host = check_url(url)
    return {
        "url": url,
        "host": host,
        "is_plain": url.startswith("http:"),
        "is_encoded": any(label.startswith("xn--") for label in host.split(".")),
    }


def _field_context(field: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return what the template shows of a field: its control, and what it has instead of one input."""
    context = {
        "name": name,
        "help": field.get("description", ""),
        "hints": _hints(field),
        "value": _shown_value(value),
        "choices": _choice_contexts(field, value),
        "attributes": {},
        "control": "input",
    }
    kind = field["type"]
    if kind == "boolean":
        context["control"], context["is_on"] = "switch", bool(value)
    elif context["choices"]:
        context["control"], context["is_empty"] = _choice_control(kind, len(context["choices"])), value is None
    elif kind in ("integer", "number"):
        context["type"], context["attributes"] = "number", _number_attributes(field)
    else:
        context["type"] = _INPUT_TYPES.get(str(field.get("format")), "text")
        context["attributes"] = _present({"minlength": field.get("minLength"), "maxlength": field.get("maxLength")})
        if not _is_short(field):
            context["control"] = "text"
    return context


def _shown_value(value: Any) -> Any:
    if value is None or isinstance(value, list):
        return ""
    return value


def _choice_contexts(field: Mapping[str, Any], value: Any) -> list[dict[str, Any]]:
    chosen = [value]
    if isinstance(value, list):
        chosen = value
    return [{"choice": choice, "is_chosen": choice.value in chosen} for choice in choices_of(field)]


def _choice_control(kind: str, count: int) -> str:
    if kind == "array":
        return "checkbox"
    if count <= MAX_RADIOS:
        return "radio"
    return "select"


def _number_attributes(field: Mapping[str, Any]) -> dict[str, Any]:
    attributes = _present({"min": field.get("minimum"), "max": field.get("maximum")})
    attributes["step"] = 1
    if field["type"] == "number":
        attributes["step"] = "any"
    return attributes


def _is_short(field: Mapping[str, Any]) -> bool:
    """Whether one line is enough for the text of a field."""
    if "format" in field or "pattern" in field:
        return True
    return bool(field.get("maxLength", _SHORT_TEXT + 1) <= _SHORT_TEXT)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _hints(field: Mapping[str, Any]) -> list[str]:
    """Return what an answer must fulfil, as far as the inputs do not show it."""
    hints = []
    format_hint = _FORMAT_HINTS.get(str(field.get("format")))
    if format_hint:
        hints.append(format_hint)
    if field.get("minItems"):
        hints.append(f"At least {field['minItems']}.")
    if field.get("maxItems") is not None:
        hints.append(f"At most {field['maxItems']}.")
    if "pattern" in field:
        # Not as the attribute ``pattern``: a hostile one could keep the browser busy forever.
        hints.append(f"Must match: {field['pattern']}")
    return hints
