"""What is left of a file once all that has not the right shape is taken out, so that the rest is checked, too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sessions_app.workflows.reading import Place

MISSHAPEN: Final = "@misshapen"
"""The type of a node that stands for one that was taken out; what names it is not complained of."""
_ID: Final = re.compile(r"[A-Za-z0-9_.:\-]{1,128}\Z")
_NO_EDGE: Final = {"source": "", "target": ""}
_NO_COMPONENT: Final = {"interface": {}, "nodes": [{"id": "it", "type": MISSHAPEN}], "edges": []}
_LEAST: Final[Mapping[str, Any]] = {"version": 1, "metadata": {"name": "workflow"}}


def without(data: Mapping[str, Any], places: Iterable[Place]) -> dict[str, Any]:
    """A copy of a file without what stands at these places; every other node and edge keeps its index."""
    kept: dict[str, Any] = {key: list(value) if isinstance(value, list) else value for key, value in data.items()}
    if isinstance(kept.get("components"), dict):
        kept["components"] = dict(kept["components"])
    copied: set[str] = set()
    for place in places:
        if place[:1] == ("components",) and len(place) > 1:
            _take_from_component(kept["components"], str(place[1]), place[2:], copied)
        elif not _take_part(kept, place):
            _take_key(kept, str(place[0]) if place else "")
    return kept


def _take_from_component(components: dict[str, Any], name: str, place: Place, copied: set[str]) -> None:
    body = components.get(name)
    if not isinstance(body, dict):
        components[name] = _NO_COMPONENT
        return
    if name not in copied:
        copied.add(name)
        body = components[name] = {key: list(one) if isinstance(one, list) else one for key, one in body.items()}
    if not _take_part(body, place):
        components[name] = dict(_NO_COMPONENT)


def _take_part(body: dict[str, Any], place: Place) -> bool:
    """Take one node or edge out; False where the place is none of these."""
    if len(place) < 2 or place[0] not in ("nodes", "edges") or not isinstance(place[1], int):
        return False
    key, index = str(place[0]), place[1]
    if not isinstance(body.get(key), list) or index >= len(body[key]):
        return False
    body[key][index] = _instead(body[key][index], index) if key == "nodes" else _NO_EDGE
    return True


def _instead(node: Any, index: int) -> dict[str, Any]:
    named = node if isinstance(node, dict) else {}
    name, parent = named.get("id"), named.get("parentId")
    is_named = isinstance(name, str) and _ID.match(name)
    return {
        "id": name if is_named else f"misshapen:{index}",
        "type": MISSHAPEN,
        "parentId": parent if isinstance(parent, str) else None,
    }


def _take_key(kept: dict[str, Any], key: str) -> None:
    if key in ("nodes", "edges"):
        kept["edges"] = []
        kept["nodes"] = kept.get("nodes") if key == "edges" else []
    elif key in _LEAST:
        kept[key] = _LEAST[key]
    else:
        kept.pop(key, None)
