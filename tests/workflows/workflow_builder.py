"""Helpers that build workflow texts for tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sessions_app.workflows.language.files import DirectoryFiles, project_root_of
from sessions_app.workflows.loader.loading import LoadResult, load_workflow


def load_file(path: Path) -> LoadResult:
    """Load a file of a project, without the loading process."""
    return load_workflow(path.read_bytes(), str(path), DirectoryFiles(project_root_of(path)))


TRIGGER = {"id": "trigger", "type": "trigger"}


def node(name: str, kind: str, parent: str = "", **data: Any) -> dict[str, Any]:
    """Return a node; ``inputs`` and ``outputs`` may contain words like ``count:number``."""
    for side in {"inputs", "outputs"} & data.keys():
        data[side] = [port(one) for one in data[side]]
    return {"id": name, "type": kind, "data": data} | ({"parentId": parent} if parent else {})


def port(one: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(one, str):
        return dict(one)
    name, _, kind = one.partition(":")
    return {"name": name, "type": kind or "any"}


def edge(text: str) -> dict[str, Any]:
    """Parse ``a.x > b.y``: output x of a to input y of b; ``a@dock:i:output > b.y`` has a handle as written."""
    (source, source_handle), (target, target_handle) = (
        _end(end, side) for end, side in zip(text.split(" > "), ("output", "input"), strict=True)
    )
    handles = {"sourceHandle": source_handle, "targetHandle": target_handle}
    return {"id": text, "source": source, "target": target} | {name: one for name, one in handles.items() if one}


def _end(text: str, side: str) -> tuple[str, str]:
    name, at, handle = text.partition("@")
    if at:
        return name, handle
    name, dot, word = text.partition(".")
    return name, f"{side}:{word}" if dot else ""


def body(nodes: Iterable[Mapping[str, Any]], edges: Iterable[str] = ()) -> dict[str, Any]:
    return {"nodes": list(nodes), "edges": [edge(one) for one in edges]}


def workflow(nodes: Iterable[Mapping[str, Any]], edges: Iterable[str] = (), **more: Any) -> str:
    """Return a whole workflow file as JSON, one value per line."""
    return json.dumps({"version": 3, "metadata": {"name": "test"}, **body(nodes, edges), **more}, indent=1)
