"""The schema of a question: what agents may ask, reduced to what is understood here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from executors_app.wire import questions
from executors_app.wire.questions import UNSTORABLE, choices_of, is_number, problem_of

MAX_FIELDS: Final = 50
MAX_CHOICES: Final = 200
"""Choices of one field."""
QUESTION_TEXT_LIMIT: Final = 4000
"""Characters of a message, title or description."""
NAME_LIMIT: Final = 200
"""Characters of a field's name."""
VALUE_LIMIT: Final = 1000
"""Characters of a choice's value."""
PATTERN_LIMIT: Final = 500
URL_LIMIT: Final = 4000
SCHEMA_LIMIT: Final = 128 * 1024
"""Bytes of a schema as JSON."""
FORMATS: Final = ("email", "uri", "date", "date-time")


def parse_question(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question of an ``elicitation/create`` request, with only the fields that are understood.

    A form is ``{"mode": "form", "message", "schema", "order"}``, where ``order`` lists the fields as the agent did,
    because databases do not keep the order of an object. A link is ``{"mode": "url", "message", "url",
    "elicitation_id"}``.
    Raises ValueError with the reason if it is invalid, or larger than people can be asked.
    """
    message = _text(params.get("message"), "message", QUESTION_TEXT_LIMIT)
    match params.get("mode"):
        case questions.FORM:
            schema = _parse_schema(params.get("requestedSchema"))
            return {"mode": questions.FORM, "message": message, "schema": schema, "order": list(schema["properties"])}
        case questions.URL:
            elicitation_id = _text(params.get("elicitationId"), "elicitationId", NAME_LIMIT)
            if not elicitation_id:
                raise ValueError("elicitationId is empty")
            url = _text(params.get("url"), "url", URL_LIMIT)
            check_url(url)
            return {"mode": questions.URL, "message": message, "url": url, "elicitation_id": elicitation_id}
    raise ValueError("mode must be form or url")


def parse_stored_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question of a journal line, checked again; raises TypeError if it is none."""
    params = {
        **{name: question.get(name) for name in ("mode", "message", "url")},
        "requestedSchema": question.get("schema"),
        "elicitationId": question.get("elicitation_id"),
    }
    try:
        return parse_question(params)
    except ValueError as error:
        raise TypeError(f"no question: {error}") from error


def check_url(url: str) -> str:
    """Return the host of a link that a person may be sent to; raises ValueError for any other."""
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        raise ValueError("the url contains characters that a URL must escape")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the url must be an http or https address with a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the url must not contain a user name or password")
    _ = parts.port  # raises ValueError if it is no number
    return parts.hostname


def options_of(question: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the ways to answer, in the shape of a permission's options."""
    accept = "Open the link"
    if question.get("mode") == questions.FORM:
        accept = "Send answer"
    return [
        {"option_id": questions.ACCEPT, "name": accept, "kind": "allow_once"},
        {"option_id": questions.DECLINE, "name": "Decline", "kind": "reject_once"},
        {"option_id": questions.CANCEL, "name": "Dismiss", "kind": "reject_once"},
    ]


def _parse_schema(schema: Any) -> dict[str, Any]:
    schema = _object(schema, "requestedSchema")
    if schema.get("type", "object") != "object":
        raise ValueError("requestedSchema must be an object schema")
    properties = _object(schema.get("properties", {}), "properties")
    if len(properties) > MAX_FIELDS:
        raise ValueError(f"a form has at most {MAX_FIELDS} fields")
    required = schema.get("required") or []
    if not isinstance(required, list) or any(not isinstance(name, str) or name not in properties for name in required):
        raise ValueError("required must list names of properties")
    fields = {_text(name, "a property's name", NAME_LIMIT): _parse_field(name, one) for name, one in properties.items()}
    parsed = {"type": "object", **_titles(schema), "properties": fields, "required": sorted(set(required))}
    if len(json.dumps(parsed)) > SCHEMA_LIMIT:
        raise ValueError(f"requestedSchema is longer than {SCHEMA_LIMIT} bytes")
    return parsed


def _parse_field(name: str, schema: Any) -> dict[str, Any]:
    given = {key: value for key, value in _object(schema, name).items() if value is not None}
    parse = _FIELD_PARSERS.get(str(given.get("type")))
    if parse is None:
        raise ValueError(f"{name}: this type is not supported")
    field = {"type": given["type"], **_titles(given), **parse(name, given)}
    # A default that is not an answer is ignored, as the published schema requires.
    if "default" in given and problem_of(field, given["default"]) is None:
        field["default"] = given["default"]
    return field


def _parse_string(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    choices = _parse_choices(name, schema, "oneOf")
    if choices:
        return choices
    limits = _range(name, schema, "minLength", "maxLength", whole=True)
    pattern, form = schema.get("pattern"), schema.get("format")
    if pattern is not None:
        limits["pattern"] = _text(pattern, f"{name}: pattern", PATTERN_LIMIT)
    if form is not None:
        if form not in FORMATS:
            raise ValueError(f"{name}: format must be one of {', '.join(FORMATS)}")
        limits["format"] = form
    return limits


def _parse_number(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return _range(name, schema, "minimum", "maximum", whole=schema["type"] == "integer")


def _parse_array(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    items = _object(schema.get("items"), f"{name}: items")
    if items.get("type", "string") != "string":
        raise ValueError(f"{name}: items must be strings")
    choices = _parse_choices(name, items, "anyOf")
    if not choices:
        raise ValueError(f"{name}: items must list their choices")
    return {"items": choices, **_range(name, schema, "minItems", "maxItems", whole=True)}


def _parse_choices(name: str, schema: Mapping[str, Any], titled: str) -> dict[str, Any]:
    """Return ``{"enum": [...]}`` or the titled choices; empty if the field offers none."""
    plain, options = schema.get("enum"), schema.get(titled)
    if plain is None and options is None:
        return {}
    found: dict[str, Any]
    if options is not None:
        found = {titled: [_parse_choice(name, one) for one in _list(options, name)]}
    else:
        found = {"enum": [_text(one, f"{name}: a choice", VALUE_LIMIT) for one in _list(plain, name)]}
    values = [choice.value for choice in choices_of(found)]
    if not 0 < len(values) <= MAX_CHOICES or len(set(values)) < len(values):
        raise ValueError(f"{name}: a field has 1 to {MAX_CHOICES} different choices")
    return found


def _parse_choice(name: str, option: Any) -> dict[str, str]:
    choice = _object(option, f"{name}: a choice")
    value = _text(choice.get("const"), f"{name}: const", VALUE_LIMIT)
    title = _text(choice.get("title"), f"{name}: title", QUESTION_TEXT_LIMIT)
    description = choice.get("description")
    if description:
        more = {"description": _text(description, f"{name}: description", QUESTION_TEXT_LIMIT)}
    else:
        more = {}
    return {"const": value, "title": title, **more}


_FIELD_PARSERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]]] = {
    "string": _parse_string,
    "number": _parse_number,
    "integer": _parse_number,
    "boolean": lambda name, schema: {},
    "array": _parse_array,
}


def _range(name: str, schema: Mapping[str, Any], low: str, high: str, *, whole: bool) -> dict[str, Any]:
    found = {key: schema[key] for key in (low, high) if schema.get(key) is not None}
    is_count = low.startswith("min") and low != "minimum"
    for key, value in found.items():
        if not is_number(value, whole=whole) or (is_count and value < 0):
            raise ValueError(f"{name}: {key} is not valid")
    if low in found and high in found and found[low] > found[high]:
        raise ValueError(f"{name}: {low} is above {high}")
    return found


def _titles(schema: Mapping[str, Any]) -> dict[str, str]:
    names = ("title", "description")
    return {name: _text(schema[name], name, QUESTION_TEXT_LIMIT) for name in names if isinstance(schema.get(name), str)}


def _text(value: Any, name: str, limit: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    if len(value) > limit:
        raise ValueError(f"{name} is longer than {limit} characters")
    if UNSTORABLE.search(value):
        raise ValueError(f"{name} contains characters that are not valid text")
    return value


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name}: choices must be a list")
    return value
