"""Every generated document, by its file name in docs/. Django must be set up before this is imported."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.documents import agents, events, recovery, settings, states
from sessions_app.workflows.loader.graph_json import workflow_json_schema


def generate_documents() -> dict[str, str]:
    """Return the text of each document."""
    return {
        "states.md": states.states_document(),
        "recovery.md": recovery.recovery_document(),
        "settings.md": settings.settings_document(),
        "agents.md": agents.agents_document(),
        "events.md": events.events_document(),
        "events.schema.json": events.events_schema(),
        "workflow.schema.json": json.dumps(workflow_json_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def write_documents(directory: Path, *, check: bool) -> list[str]:
    """Write the documents that are out of date, unless ``check``; return their names."""
    stale = []
    for name, text in generate_documents().items():
        path = directory / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    return stale
