"""Outputs that are found in the text of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sessions_app.workflows.limited import LimitedError
from sessions_app.workflows.nodes import Limited
from sessions_app.workflows.schema import Port
from sessions_app.workflows.values import Unfit, at_path, fit


def extracted(
    ports: Sequence[Port], plain: Mapping[str, Any], text: str, limited: Limited
) -> tuple[dict[str, Any], str]:
    """Every output, and what is wrong with one of them or “”. ``plain`` has those that need no search."""
    found: dict[str, Any] = dict(plain)
    patterns = [one for one in ports if one.extract and one.extract.type == "regex"]
    trouble = ""
    try:
        matches = limited([{"operation": "regex", "pattern": _pattern(one), "text": text} for one in patterns])
        found |= {one.name: match for one, match in zip(patterns, matches, strict=True)}
    except LimitedError as error:
        trouble = str(error)
        found |= dict.fromkeys(one.name for one in patterns)
    for one in ports:
        if one.extract and one.extract.type == "json_path":
            found[one.name] = at_path(text, one.extract.pattern)
        elif one.extract and one.extract.type == "full":
            found[one.name] = text
        found.setdefault(one.name, text)
        try:
            found[one.name] = fit(found[one.name], one.type)
        except Unfit as error:
            found[one.name] = None
            trouble = trouble or f"the output “{one.name}”: {error}"
    return found, trouble


def _pattern(port: Port) -> str:
    return port.extract.pattern if port.extract else ""
