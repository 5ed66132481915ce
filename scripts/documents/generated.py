"""Every generated document, by its path in the repository. Django must be set up before this is imported."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.documents import agents, events, recovery, settings, states, topics
from sessions_app.workflows.loader.graph_json import workflow_json_schema


def generate_documents() -> dict[str, str]:
    """Return the text of each document."""
    return {
        "docs/states.md": states.states_document(),
        "docs/recovery.md": recovery.recovery_document(),
        "docs/settings.md": settings.settings_document(),
        "docs/agents.md": agents.agents_document(),
        "docs/events.md": events.events_document(),
        "docs/events.schema.json": events.events_schema(),
        "docs/topics.md": topics.topics_document(),
        **{f"sessions_app/{name}/README.md": topics.topic_readme(name) for name in topics.topics()},
        "docs/workflow.schema.json": json.dumps(workflow_json_schema(), indent=2, ensure_ascii=False) + "\n",
    }


def write_documents(directory: Path, *, check: bool) -> list[str]:
    """Write the documents below ``directory`` that are out of date, unless ``check``; return their paths."""
    stale = []
    for name, text in generate_documents().items():
        path = directory / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return stale
