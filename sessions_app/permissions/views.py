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

    def __init__(self, asked: PermissionRequest, content: Mapping[str, Any], error: InvalidAnswer):
        super().__init__(error.message, **error.details)
        self.asked, self.content = asked, content
        self.problems = {name: str(problem["message"]) for name, problem in error.details["fields"].items()}

    @property
    def by_input(self) -> dict[str, str]:
        """The problems by the name of the input."""
        names = {name: input_name(number) for number, name in enumerate(fields_of(self.asked.question))}
        return {names[name]: problem for name, problem in self.problems.items() if name in names}


def input_name(number: int) -> str:
    """Return the name of a field's input. The agent's own names could clash with those of the page."""
    return f"field-{number}"


def answer_from_page(row: TaskSession, request: UserHttpRequest) -> None:
    """Answer a permission or a question as its form on the page was sent; raises WrongAnswer, else as the service."""
    posted = request.POST
    permission_id, option_id = str(posted.get("permission_id", "")), str(posted.get("option_id", ""))
    asked = row.permissions.filter(id=permission_id).first()
    if asked is not None and option_id == questions.ACCEPT:
        content = read_form(asked.question, posted)
    else:
        content = {}
    secret = str(posted.get("resume_token", ""))
    try:
        answer_permission(row.id, permission_id, option_id, secret, request.user, content=content)
    except InvalidAnswer as error:
        if asked is None:
            raise
        raise WrongAnswer(asked, content, error) from error


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
    fields, required = fields_of(question), required_of(question)
    return {
        "message": question["message"],
        "description": question["schema"].get("description", ""),
        "fields": [
            _field_context(
                field,
                input_name(number),
                field.get("default") if content is None else content.get(name),
                label=field.get("title") or name,
                required=name in required,
                problem=(problems or {}).get(name, ""),
            )
            for number, (name, field) in enumerate(fields.items())
        ],
    }


def _link_context(url: str) -> dict[str, Any]:
    host = check_url(url)
    return {
        "url": url,
        "host": host,
        "is_plain": url.startswith("http:"),
        "is_encoded": any(label.startswith("xn--") for label in host.split(".")),
    }


def _field_context(field: Mapping[str, Any], name: str, value: Any, **more: Any) -> dict[str, Any]:
    choices, kind = choices_of(field), field["type"]
    chosen = value if isinstance(value, list) else [value]
    context = {
        "name": name,
        "help": field.get("description", ""),
        "hints": _hints(field),
        "value": "" if value is None or isinstance(value, list) else value,
        "choices": [{"choice": one, "is_chosen": one.value in chosen} for one in choices],
        "attributes": {},
        **more,
    }
    if kind == "boolean":
        return {**context, "control": "switch", "is_on": bool(value)}
    if choices:
        single = "radio" if len(choices) <= MAX_RADIOS else "select"
        return {**context, "control": "checkbox" if kind == "array" else single, "is_empty": value is None}
    if kind in ("integer", "number"):
        limits = {"min": field.get("minimum"), "max": field.get("maximum"), "step": 1 if kind == "integer" else "any"}
        return {**context, "control": "input", "type": "number", "attributes": _present(limits)}
    limits = {"minlength": field.get("minLength"), "maxlength": field.get("maxLength")}
    is_short = "format" in field or "pattern" in field or field.get("maxLength", _SHORT_TEXT + 1) <= _SHORT_TEXT
    type_ = _INPUT_TYPES.get(str(field.get("format")), "text")
    return {**context, "control": "input" if is_short else "text", "type": type_, "attributes": _present(limits)}


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _hints(field: Mapping[str, Any]) -> list[str]:
    """Return what an answer must fulfil, as far as the inputs do not show it."""
    few, many = field.get("minItems"), field.get("maxItems")
    hints = [_FORMAT_HINTS.get(str(field.get("format")), "")]
    hints += [f"At least {few}." if few else "", f"At most {many}." if many is not None else ""]
    # Not as the attribute ``pattern``: a hostile one could keep the browser busy forever.
    hints += [f"Must match: {field['pattern']}" if "pattern" in field else ""]
    return list(filter(None, hints))
