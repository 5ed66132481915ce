"""The JSON Schema of workflow files, for editors: the shape of a file, and of each type's settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from sessions_app.workflows.nodes import node_types
from sessions_app.workflows.schema import WorkflowFile

_TITLE = "Kandev workflow"
_ABOUT = "A loop workflow, versions 1 to 3. Written by manage.py write_docs."


def json_schema() -> dict[str, Any]:
    """The schema of a whole file; the settings of a node follow from its type."""
    kinds = sorted(node_types().items())
    models: set[type[BaseModel]] = {WorkflowFile, *(kind.settings for _, kind in kinds)}
    refs, found = models_json_schema([(model, "validation") for model in sorted(models, key=lambda one: one.__name__)])
    definitions = found["$defs"]
    definitions["Node"]["allOf"] = [_settings(name, refs[kind.settings, "validation"]) for name, kind in kinds]
    definitions["Node"]["properties"]["type"] = {"enum": [name for name, _ in kinds]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE,
        "description": _ABOUT,
        **refs[WorkflowFile, "validation"],
        "$defs": definitions,
    }


def _settings(name: str, reference: dict[str, Any]) -> dict[str, Any]:
    """``data.nodeType`` says the type, and ``type`` where it does not."""
    inside = {"properties": {"data": {"properties": {"nodeType": {"const": name}}, "required": ["nodeType"]}}}
    beside = {
        "properties": {"type": {"const": name}, "data": {"not": {"required": ["nodeType"]}}},
        "required": ["type"],
    }
    return {"if": {"anyOf": [{**inside, "required": ["data"]}, beside]}, "then": {"properties": {"data": reference}}}
