"""Questions of agents (elicitations): the form or link that an agent asks for, and the answers that fit it.

agentctl checks a question before it asks anyone, and the control plane and agentctl both check the answer. Forms are
the restricted JSON Schema of ACP 1.7 and MCP: a flat object of texts, numbers, choices and switches. What the agent
writes is hostile, so sizes and counts are limited. Patterns are not matched here, because a hostile one may take for
ever: the control plane matches them in a process with limits (``sessions_app.permissions.services``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

ACCEPT: Final = "accept"
DECLINE: Final = "decline"
CANCEL: Final = "cancel"
"""The actions of ACP, which are also the ``option_id`` of an answer."""
FORM: Final = "form"
URL: Final = "url"
"""The modes of ACP."""

ANSWER_LIMIT: Final = 20_000
"""Characters of one text in an answer."""
UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that databases cannot store."""
_EMAIL: Final = re.compile(r"[^@\s]{1,64}@[^@\s]{1,255}")
_MAX_INTEGER: Final = 2**63 - 1


class ProblemCode(StrEnum):
    """What is wrong with one field of an answer."""

    REQUIRED = "required"
    UNKNOWN_FIELD = "unknown_field"
    WRONG_TYPE = "wrong_type"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    TOO_SMALL = "too_small"
    TOO_LARGE = "too_large"
    TOO_FEW = "too_few"
    TOO_MANY = "too_many"
    NOT_OFFERED = "not_offered"
    BAD_FORMAT = "bad_format"
    BAD_PATTERN = "bad_pattern"
    PATTERN_TIMEOUT = "pattern_timeout"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a field of an answer is refused: a stable code, and a sentence for people."""

    code: ProblemCode
    message: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a field."""

    value: str
    label: str
    description: str = ""


def fields_of(question: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of a form by name, in the agent's order; a link has none."""
    fields: Mapping[str, Mapping[str, Any]] = (question.get("schema") or {}).get("properties") or {}
    return {name: fields[name] for name in question.get("order") or fields if name in fields}


def required_of(question: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the fields that an answer must have."""
    return frozenset((question.get("schema") or {}).get("required") or ())


def choices_of(field: Mapping[str, Any]) -> list[Choice]:
    """Return the choices of a field; empty if it is typed."""
    return list(_choices(field.get("items") or field))


def _choices(field: Mapping[str, Any]) -> Iterator[Choice]:
    for value in field.get("enum") or ():
        yield Choice(value, value)
    for option in field.get("oneOf") or field.get("anyOf") or ():
        yield Choice(option["const"], option["title"], option.get("description", ""))


def check_answer(question: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Problem]:
    """Return what is wrong with an answer, by field; empty if the agent may have it. Patterns are not matched."""
    fields, problems = fields_of(question), {}
    for name in content:
        if name not in fields:
            problems[str(name)] = Problem(ProblemCode.UNKNOWN_FIELD, "The question has no such field.")
    for name, field in fields.items():
        if name not in content:
            if name in required_of(question):
                problems[name] = Problem(ProblemCode.REQUIRED, "This field is required.")
        elif problem := problem_of(field, content[name]):
            problems[name] = problem
    return problems


def recorded_answer(question: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the log may keep of an answer: choices and switches, but nothing that a person typed."""
    fields = fields_of(question)
    return {name: value for name, value in content.items() if name in fields and is_recorded(fields[name])}


def is_recorded(field: Mapping[str, Any]) -> bool:
    """Return whether the answer to a field may be kept: it is a choice or a switch, and nothing that was typed."""
    return field["type"] == "boolean" or bool(choices_of(field))


def patterns_of(question: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, pattern and text of each field of an answer that must match a pattern."""
    for name, field in fields_of(question).items():
        if "pattern" in field and isinstance(content.get(name), str):
            yield name, field["pattern"], content[name]


def is_number(value: Any, *, whole: bool) -> bool:
    """Return whether a value is a number of JSON, or a ``whole`` one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if abs(value) > _MAX_INTEGER:
        return False
    if whole:
        return float(value).is_integer()
    return math.isfinite(value)


def problem_of(field: Mapping[str, Any], value: Any) -> Problem | None:
    """Return why a value is not a valid answer to a field; None if it is."""
    match field["type"]:
        case "boolean":
            if isinstance(value, bool):
                return None
            return Problem(ProblemCode.WRONG_TYPE, "Expected true or false.")
        case "array":
            return _problem_of_list(field, value)
        case "string":
            return _problem_of_text(field, value)
    if field["type"] == "integer" and not is_number(value, whole=True):
        return Problem(ProblemCode.WRONG_TYPE, "Expected a whole number.")
    if not is_number(value, whole=False):
        return Problem(ProblemCode.WRONG_TYPE, "Expected a number.")
    return _outside(
        value,
        field,
        ("minimum", ProblemCode.TOO_SMALL, "at least {:g}"),
        ("maximum", ProblemCode.TOO_LARGE, "at most {:g}"),
    )


def _problem_of_list(field: Mapping[str, Any], value: Any) -> Problem | None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return Problem(ProblemCode.WRONG_TYPE, "Expected a list of choices.")
    offered = {choice.value for choice in choices_of(field)}
    if not offered.issuperset(value) or len(set(value)) < len(value):
        return Problem(ProblemCode.NOT_OFFERED, "Choose from the offered options, each at most once.")
    few, many = "at least {} choices", "at most {} choices"
    return _outside(len(value), field, ("minItems", ProblemCode.TOO_FEW, few), ("maxItems", ProblemCode.TOO_MANY, many))


def _problem_of_text(field: Mapping[str, Any], value: Any) -> Problem | None:
    if not isinstance(value, str) or UNSTORABLE.search(value):
        return Problem(ProblemCode.WRONG_TYPE, "Expected text.")
    if choices := choices_of(field):
        is_offered = value in {choice.value for choice in choices}
        if is_offered:
            return None
        return Problem(ProblemCode.NOT_OFFERED, "Choose one of the offered options.")
    if len(value) > ANSWER_LIMIT:
        return Problem(ProblemCode.TOO_LONG, f"Expected at most {ANSWER_LIMIT} characters.")
    short, long = "at least {} characters", "at most {} characters"
    limits = (("minLength", ProblemCode.TOO_SHORT, short), ("maxLength", ProblemCode.TOO_LONG, long))
    return _outside(len(value), field, *limits) or _problem_of_format(str(field.get("format", "")), value)


def _outside(
    value: float, field: Mapping[str, Any], low: tuple[str, ProblemCode, str], high: tuple[str, ProblemCode, str]
) -> Problem | None:
    for (key, code, words), sign in ((low, 1), (high, -1)):
        if key in field and (value - field[key]) * sign < 0:
            return Problem(code, f"Expected {words.format(field[key])}.")
    return None


def _problem_of_format(form: str, value: str) -> Problem | None:
    check = _FORMAT_CHECKS.get(form)
    if check is None:
        return None
    parse, words = check
    try:
        parse(value)
    except ValueError:
        return Problem(ProblemCode.BAD_FORMAT, f"Expected {words}.")
    return None


def _parse_email(value: str) -> None:
    if not _EMAIL.fullmatch(value):
        raise ValueError(value)


def _parse_uri(value: str) -> None:
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]", value) or re.search(r"\s", value):
        raise ValueError(value)
    urlsplit(value)


def _parse_date(value: str) -> None:
    if date.fromisoformat(value).isoformat() != value:  # other ISO 8601 notations are not dates in JSON Schema
        raise ValueError(value)


def _parse_moment(value: str) -> None:
    if "T" not in value.upper() or datetime.fromisoformat(value.upper()).tzinfo is None:
        raise ValueError(value)


_FORMAT_CHECKS: Final[Mapping[str, tuple[Callable[[str], None], str]]] = {
    "email": (_parse_email, "an email address"),
    "uri": (_parse_uri, "an address such as https://example.org"),
    "date": (_parse_date, "a date such as 2026-12-31"),
    "date-time": (_parse_moment, "a date and time with its zone, such as 2026-12-31T12:00:00Z"),
}
