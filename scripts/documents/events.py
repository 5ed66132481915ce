"""The tables of docs/events.md and the JSON schema of all events, from their declarations."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from scripts.documents.markdown import markdown_table
from sessions_app.events import TOPICS, Event, events_of_topic

_DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "events.md"
_TABLE: Final = re.compile(r"(?P<begin><!-- events: (?P<topic>\w+) -->\n).*?(?P<end><!-- end of events -->)", re.DOTALL)


def events_document() -> str:
    """Return docs/events.md with its tables written anew; its sentences are written by hand."""
    tables = {_name_of(topic): _table(events_of_topic(topic)) for topic in TOPICS}
    return _TABLE.sub(
        lambda found: f"{found['begin']}{tables[found['topic']]}\n{found['end']}",
        _DOCUMENT.read_text(encoding="utf-8"),
    )


def _name_of(topic: ModuleType) -> str:
    """Return the name of a module of events, or of its package if it is called *events* itself."""
    *_, package, name = topic.__name__.split(".")
    return package if name == "events" else name


def _table(events: list[type[Event]]) -> str:
    rows = [[f"`{event.name}`", _payload_cell(event) or "–", event.recorded_by] for event in events]
    return markdown_table(["event", "payload", "written by"], rows)


def _payload_cell(event: type[Event]) -> str:
    """Return the fields with their descriptions."""
    cells = []
    for attribute, name, _ in event.payload_fields:
        description = event.model_fields[attribute].description
        cells.append(f"`{name}`: {description}" if description else f"`{name}`")
    separator = "; " if any(": " in cell for cell in cells) else ", "
    return separator.join(cells)


def events_schema() -> str:
    """Return the JSON schema of an event: one alternative for each name."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a session's log",
        "description": "Later versions may add events and fields.",
        "oneOf": [event_schema(event) for topic in TOPICS for event in events_of_topic(topic)],
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def event_schema(event: type[Event]) -> dict[str, Any]:
    """Return the JSON schema of one event's name and payload."""
    payload = event.model_json_schema()
    for value in payload.get("properties", {}).values():
        value.pop("title", None)
    return {
        "type": "object",
        "description": payload.get("description", ""),
        "properties": {
            "event": {"const": event.name},
            "payload": {
                "type": "object",
                "properties": payload.get("properties", {}),
                "required": payload.get("required", []),
            },
        },
        "required": ["event", "payload"],
    }
