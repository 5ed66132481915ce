"""What somebody looks for on the board, from the address; whatever cannot be meant is passed over."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from sessions_app.domain.states import TaskState
from sessions_app.models.scoping import teams_of
from sessions_app.services.board import Filter
from sessions_app.services.catalogue import visible_profiles
from sessions_app.views.wording import TASK_STATES

TEXT_LIMIT: Final = 200


def read_filter(given: Mapping[str, str]) -> Filter:
    """The filter of an address: ``q``, ``team``, ``agent``, ``state``, ``mine``, ``needs``, ``archived``."""
    state = given.get("state", "")
    return Filter(
        text=given.get("q", "").replace("\0", "").strip()[:TEXT_LIMIT],
        team=_number(given.get("team", "")),
        agent=_id(given.get("agent", "")),
        state=state if state in list(TaskState) else "",
        mine=bool(given.get("mine")),
        needs=bool(given.get("needs")),
        archived=bool(given.get("archived")),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def query_of(wanted: Filter) -> str:
    """The same as part of an address; empty where nothing is looked for."""
    values = {
        "q": wanted.text,
        "team": wanted.team,
        "agent": wanted.agent,
        "state": wanted.state,
        "mine": wanted.mine and "1",
        "needs": wanted.needs and "1",
        "archived": wanted.archived and "1",
    }
    return urlencode({name: value for name, value in values.items() if value})


def filter_context(user: Any, wanted: Filter) -> dict[str, Any]:
    """What the form offers, and what of it is chosen."""
    return {
        "wanted": wanted,
        "query": query_of(wanted),
        "teams": list(teams_of(user).order_by("name")),
        "agents": list(visible_profiles(user).only("id", "name")),
        "states": [(state.value, TASK_STATES[state].text) for state in TaskState],
    }
