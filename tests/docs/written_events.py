"""Read from the source which events the code can write to a session's log."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from sessions_app.domain.states import PROMPT, RUN, RunState
from sessions_app.models.transactions import EXECUTOR_EVENTS
from tests.services import ROOT

EXPANSIONS: Mapping[str, Sequence[str]] = {
    "session.prompt.": sorted({str(target) for _, target in PROMPT.moves.values()}),
    "session.run.": sorted({str(target) for _, target in RUN.moves.values()} - {RunState.RUNNING} | {"resumed"}),
}
"""The names that an f-string with this prefix can produce."""


def fields_by_event() -> dict[str, set[str]]:
    """Return the payload fields of each event name in the source."""
    found: dict[str, set[str]] = defaultdict(set)
    for call in _calls():
        fields = set(_fields(call))
        for name in _names(call):
            found[name] |= fields
    return found


@cache
def _calls() -> list[ast.Call]:
    """Return every call of ``transaction.record_event(...)`` and ``NewEvent(...)``."""
    paths = sorted((ROOT / "sessions_app").rglob("*.py"))
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return [node for node in nodes if isinstance(node, ast.Call) and node.args and _writes_event(node.func)]


def _writes_event(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr == "record_event"
    return isinstance(function, ast.Name) and function.id == "NewEvent"


def _names(call: ast.Call) -> Iterator[str]:
    named = call.args[0]
    source = ast.unparse(named)
    if isinstance(named, ast.Constant) and isinstance(named.value, str):
        yield named.value
    elif isinstance(named, ast.JoinedStr) and isinstance(named.values[0], ast.Constant):
        beginning = str(named.values[0].value)
        assert beginning in EXPANSIONS, f"tests/docs/written_events.py does not know what {source} becomes"
        yield from (beginning + word for word in EXPANSIONS[beginning])
    elif source == "EXECUTOR_EVENTS[after]":
        yield from EXECUTOR_EVENTS.values()
    elif source != "name":  # record_event itself, which passes its arguments to NewEvent
        raise AssertionError(f"tests/docs/written_events.py cannot tell which events {source} is")


def _fields(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg != "once":
            yield keyword.arg
        elif isinstance(keyword.value, ast.Dict):
            yield from (str(key.value) for key in keyword.value.keys if isinstance(key, ast.Constant))
