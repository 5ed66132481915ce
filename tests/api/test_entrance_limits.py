"""Every text, list and object that a request, a form or a tool can contain has a limit."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from django import forms
from django.conf import settings
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.test import APIClient

import sessions_app
from sessions_app.api.serializers.common import SizedDictField, SizedJSONField, SizedListField, StrictCharField
from sessions_app.mcp_server.tools import TOOLS
from tests.api.world import World

Schema = Mapping[str, Any]
BOUNDED_FORMATS = {"uuid", "date-time", "date", "binary"}
"""Texts of a fixed length; the length of a binary body is checked by its parser (``FileParser``)."""
FORMS_WITHOUT_LIMITS = {
    "McpServerListForm.servers",  # of the admin, where the model's ``clean`` checks it
    "AccountCreationForm.password1",  # of the admin; a password is hashed, and never stored
    "AccountCreationForm.password2",
    "SpecimenForm.plain",  # of a page that shows the design, and takes no form
    "SpecimenForm.optional",
    "SpecimenForm.long",
    "SearchForm.session",  # an id, which is refused in time that is linear in its length
}
"""Texts limited only by ``DATA_UPLOAD_MAX_MEMORY_SIZE``, which is 2.5 MB for a whole form."""


def _limits_missing(document: Schema, schema: Schema, path: str, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of all texts, lists and objects in a schema that have no limit."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        if name not in seen:
            found = (document.get("components", {}).get("schemas") or document["$defs"])[name]
            yield from _limits_missing(document, found, path, (*seen, name))
        return
    for part in (*schema.get("oneOf", ()), *schema.get("anyOf", ()), *schema.get("allOf", ())):
        yield from _limits_missing(document, part, path, seen)
    kind = schema.get("type")
    if kind == "string" and not _is_bounded_text(schema):
        yield f"{path}: text"
    elif kind == "array":
        if "maxItems" not in schema:
            yield f"{path}: list"
        yield from _limits_missing(document, schema["items"], f"{path}[]", seen)
    elif kind == "object":
        yield from _of_object(document, schema, path, seen)
    elif not schema.keys() & {"type", "oneOf", "anyOf", "allOf", "enum", "const", "x-max-bytes"}:
        yield f"{path}: any value"


def _is_bounded_text(schema: Schema) -> bool:
    return bool(schema.keys() & {"maxLength", "enum", "const"}) or schema.get("format") in BOUNDED_FORMATS


def _of_object(document: Schema, schema: Schema, path: str, seen: tuple[str, ...]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        if not field.get("readOnly"):
            yield from _limits_missing(document, field, f"{path}.{name}", seen)
    values = schema.get("additionalProperties", "properties" not in schema)
    if values is False:
        return
    if values and "maxProperties" not in schema and "x-max-bytes" not in schema:
        yield f"{path}: object"
    if isinstance(values, Mapping) and "x-max-bytes" not in schema:
        yield from _limits_missing(document, values, f"{path}.*", seen)


def test_every_field_of_a_request_body_has_a_limit() -> None:
    document = yaml.safe_load((Path(settings.BASE_DIR) / "docs" / "openapi.yaml").read_text())
    missing = list[str]()
    for address, operations in document["paths"].items():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                missing += _limits_missing(document, content["schema"], f"{address} ")
    assert missing == []


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_argument_of_a_tool_has_a_limit(tool: Any) -> None:
    schema = tool.arguments_type.model_json_schema()
    # Whatever is not a text of its own counts towards the 64 KiB of the message.
    missing = [
        one for one in _limits_missing(schema, schema, tool.name) if not one.endswith((": object", ": any value"))
    ]
    assert missing == []


def _form_classes() -> list[type[forms.BaseForm]]:
    for module in pkgutil.walk_packages(sessions_app.__path__, "sessions_app."):
        if ".pages" in module.name:
            importlib.import_module(module.name)
    found, waiting = [], [forms.BaseForm]
    while waiting:
        for form in waiting.pop().__subclasses__():
            waiting.append(form)
            if form.__module__.startswith("sessions_app"):
                found.append(form)
    return found


def test_every_text_of_a_form_has_a_limit() -> None:
    forms_found = _form_classes()
    assert len(forms_found) > 5
    missing = [
        f"{form.__qualname__}.{name}"
        for form in forms_found
        for name, field in getattr(form, "base_fields", {}).items()
        if isinstance(field, forms.CharField) and not field.max_length and not field.disabled
    ]
    assert set(missing) <= FORMS_WITHOUT_LIMITS


def _code_of(error: ValidationError) -> str:
    (detail,) = error.detail
    assert isinstance(detail, ErrorDetail)
    return str(detail.code)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({f"n{number}": 1 for number in range(6)}, "too_many"),
        ({"a": "x" * 200}, "too_large"),
        ({"a": [[[["x" * 30] * 5]]]}, "too_large"),
    ],
)
def test_object_beyond_its_limits_is_refused(value: Any, code: str) -> None:
    with pytest.raises(ValidationError) as refused:
        SizedDictField(max_names=5, max_bytes=100).run_validation(value)
    assert _code_of(refused.value) == code


def test_json_value_beyond_its_limit_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        SizedJSONField(max_bytes=100).run_validation(["x"] * 100)
    assert _code_of(refused.value) == "too_large"


def test_object_within_its_limits_is_accepted() -> None:
    field = SizedDictField(max_names=2, max_bytes=100, child=StrictCharField())
    assert field.run_validation({"a": "b"}) == {"a": "b"}


def _serializer_classes() -> list[Any]:
    for module in pkgutil.walk_packages(sessions_app.__path__, "sessions_app."):
        if ".api" in module.name:
            importlib.import_module(module.name)
    found, waiting = list[Any](), list[Any]([serializers.BaseSerializer])
    while waiting:
        for serializer in waiting.pop().__subclasses__():
            waiting.append(serializer)
            if serializer.__module__.startswith("sessions_app"):
                found.append(serializer)
    return found


def test_every_limited_list_checks_its_length_before_its_entries() -> None:
    classes = _serializer_classes()
    assert len(classes) > 50
    wrong = [
        f"{serializer.__qualname__}.{name}"
        for serializer in classes
        for name, field in getattr(serializer, "_declared_fields", {}).items()
        if isinstance(field, serializers.ListField)
        and field.max_length is not None
        and not isinstance(field, SizedListField)
    ]
    assert wrong == []


class CountingField(serializers.CharField):
    """Counts its values."""

    checked = 0

    def run_validation(self, data: Any = None) -> Any:
        """Count, and refuse."""
        CountingField.checked += 1
        raise ValidationError("wrong")


def test_entries_of_a_list_that_is_too_long_are_not_checked() -> None:
    with pytest.raises(ValidationError) as refused:
        SizedListField(child=CountingField(), max_length=3).run_validation([0] * 100_000)
    assert (_code_of(refused.value), CountingField.checked) == ("max_length", 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("tail", "body"),
    [
        ("prompt/", {"message_id": "m", "text": "x", **{f"k{number}": 0 for number in range(100_000)}}),
        ("prompt/", {"message_id": "m", "text": "x", "attachments": [{}] * 100_000}),
        ("prompt/", {"message_id": "m", "text": "x", "values": [0] * 200_000}),
        (f"permissions/{'p'}/", {"option_id": "yes", "content": {f"k{number}": 0 for number in range(100_000)}}),
    ],
    ids=["unknown fields", "attachments", "values", "answer"],
)
def test_request_with_many_fields_gets_a_short_error(
    world: World, api: APIClient, tail: str, body: dict[str, Any]
) -> None:
    answer = api.post(world.url(tail), body, format="json")
    assert 400 <= answer.status_code < 500
    assert len(answer.content) < 64 * 1024
