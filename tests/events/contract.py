"""The events and fields that Kandev has promised, in ``contract.json``.

``python -m tests.events.contract`` adds what is new. It never changes or removes an entry.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sessions_app.events import EVENT_CLASSES, Event

FILE: Final = Path(__file__).with_name("contract.json")
Contract = dict[str, dict[str, Any]]


def promised() -> Contract:
    """Return the promised events: for each, the type of each field, and whether the field is always there."""
    contract: Contract = json.loads(FILE.read_text(encoding="utf-8"))
    return contract


def declared() -> Contract:
    """Return the events of the code in the same form."""
    return {name: _fields(event) for name, event in sorted(EVENT_CLASSES.items())}


def _fields(event: type[Event]) -> dict[str, Any]:
    schema = event.model_json_schema()
    required = schema.get("required", [])
    return {
        name: {"type": _type_of(values), "always": name in required}
        for name, values in schema.get("properties", {}).items()
    }


def _type_of(schema: dict[str, Any]) -> str:
    """Return the JSON types of a field, such as ``string or null``."""
    if "anyOf" in schema:
        return " or ".join(_type_of(alternative) for alternative in schema["anyOf"])
    return str(schema.get("type", "any"))


def add_new() -> None:
    """Add new events and fields to the file."""
    contract = promised() if FILE.is_file() else {}
    for name, fields in declared().items():
        contract[name] = {**fields, **contract.get(name, {})}
    FILE.write_text(json.dumps(dict(sorted(contract.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    add_new()
