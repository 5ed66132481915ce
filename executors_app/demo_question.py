"""The question that the demo agent asks: a form with one field of each kind."""

from __future__ import annotations

import json
from typing import Any, Final

QUESTION: Final = {
    "mode": "form",
    "message": "How should I set up the database of the demo?",
    "requestedSchema": {
        "type": "object",
        "title": "Set up a database",
        "properties": {
            "engine": {
                "type": "string",
                "title": "Engine",
                "oneOf": [
                    {"const": "sqlite", "title": "SQLite", "description": "One file, nothing to install."},
                    {"const": "postgresql", "title": "PostgreSQL", "description": "A server, for several writers."},
                ],
            },
            "name": {
                "type": "string",
                "title": "Name",
                "description": "Small letters, digits and underscores.",
                "pattern": "^[a-z][a-z0-9_]*$",
                "maxLength": 30,
                "default": "demo",
            },
            "copies": {"type": "integer", "title": "Copies", "minimum": 1, "maximum": 9, "default": 1},
            "extras": {
                "type": "array",
                "title": "Extras",
                "items": {"type": "string", "enum": ["backups", "metrics", "test data"]},
                "maxItems": 2,
            },
            "encrypted": {"type": "boolean", "title": "Encrypt it", "default": True},
        },
        "required": ["engine", "name"],
    },
}


def shows_forms(initialize: dict[str, Any]) -> bool:
    """Return whether the client that sent this ``initialize`` shows forms."""
    elicitation = (initialize.get("clientCapabilities") or {}).get("elicitation") or {}
    return elicitation.get("form") is not None


def ask_question(turn: Any) -> None:
    """Ask the question and repeat the answer; say so if the client shows no forms."""
    if not turn.agent.asks_forms:
        turn.say("I cannot ask questions here.\n")
        return
    params = {"sessionId": turn.conversation.id, **QUESTION}
    answer = turn.agent.call("elicitation/create", params, turn.cancelled)
    turn.rest(0)  # the answer to the question of a cancelled turn is no answer
    content = json.dumps(answer.get("content") or {}, sort_keys=True)
    words = {"accept": f"The answer was {content}.\n", "decline": "You declined to answer.\n"}
    turn.say(words.get(str(answer.get("action")), "You gave no answer.\n"))
