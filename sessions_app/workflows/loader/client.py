"""Load, check and edit workflow texts in limited processes, which bound what a text can cost."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sessions_app.confined.client import ConfinedPool, PoolUnavailable, TooExpensive
from sessions_app.confined.limits import Limits
from sessions_app.workflows.language.diagnostics import Diagnostic, InvalidWorkflow, Severity, invalid_workflow
from sessions_app.workflows.language.files import (
    CachedFiles,
    DirectoryFiles,
    FileProvider,
    FileUnavailable,
    NoFiles,
    project_root_of,
)
from sessions_app.workflows.language.limits import LOADING_CPU_SECONDS, LOADING_MEMORY, LOADING_SECONDS
from sessions_app.workflows.language.reader import decode_text
from sessions_app.workflows.loader import graph_json
from sessions_app.workflows.loader.editing import EditNotPossible
from sessions_app.workflows.loader.loading import LoadResult

MAX_CONCURRENT_LOADS: Final = 4
"""Texts that this process has loaded at the same time; further requests wait."""
LIMITS: Final[dict[str, Any]] = {
    "cpu_seconds": LOADING_CPU_SECONDS,
    "seconds": LOADING_SECONDS,
    "memory": LOADING_MEMORY,
}
POOL: Final = ConfinedPool("sessions_app.workflows.loader.operations", running=MAX_CONCURRENT_LOADS)


class LoadingUnavailable(Exception):
    """The text could not be loaded, but not because of the text: the machine is busy, or no process could start."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the editor shows for a text. ``svg`` is empty if the workflow is invalid, or too large to draw."""

    is_valid: bool
    problems: tuple[Diagnostic, ...]
    svg: str
    nodes: tuple[str, ...]


def load_isolated(text: str | bytes, name: str = "workflow", files: FileProvider | None = None) -> LoadResult:
    """Load a text as ``loading.load_workflow`` does, within limits of time and memory. Raises LoadingUnavailable.

    A text that exceeds the limits gets the problem ``too_expensive``.
    """
    answer, problems = _read_isolated("loaded", text, name, files)
    if not answer.get("workflow"):
        return LoadResult(None, problems)
    return LoadResult(graph_json.graph_from_json(answer["workflow"]), problems)


@dataclass(frozen=True, slots=True)
class WorkflowInput:
    """A workflow file, the result of loading it, and the files that it names."""

    text: str
    loaded: LoadResult
    files: dict[str, str]


def load_file_isolated(path: Path) -> WorkflowInput:
    """Load a file. The files that it names are in its project. Raises LoadingUnavailable."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror}"
        problems = invalid_workflow(str(path), 0, "unreadable", reason, "").problems
        return WorkflowInput("", LoadResult(None, problems), {})
    files = CachedFiles(DirectoryFiles(project_root_of(path)))
    loaded = load_isolated(raw, str(path), files)
    return WorkflowInput(raw.decode("utf-8-sig", "replace"), loaded, files.files)


def check_isolated(text: str, files: FileProvider | None = None) -> CheckResult:
    """Check and draw a text for the editor. Raises LoadingUnavailable."""
    answer, problems = _read_isolated("checked", text, "workflow", files)
    return CheckResult(answer.get("valid", False), problems, answer.get("svg", ""), tuple(answer.get("nodes", ())))


def _read_isolated(
    operation: str, text: str | bytes, name: str, files: FileProvider | None
) -> tuple[dict[str, Any], tuple[Diagnostic, ...]]:
    """Return the answer of an operation with its problems; an empty answer if the text could not be read at all."""
    try:
        answer = _request(operation, {"text": decode_text(text, name), "name": name}, files)
    except InvalidWorkflow as error:
        return {}, error.problems
    except TooExpensive:
        message = f"loading the workflow takes more than {LOADING_CPU_SECONDS} s of processor time, or too much memory"
        return {}, invalid_workflow(name, 0, "too_expensive", message, "Make the workflow smaller.").problems
    problems = (Diagnostic(**found | {"severity": Severity(found["severity"])}) for found in answer["problems"])
    return answer, tuple(problems)


def node_data_isolated(text: str, node: str) -> dict[str, Any]:
    """Run ``editing.node_data``. Raises EditNotPossible and LoadingUnavailable."""
    data: dict[str, Any] = _run_edit("node", text, node=node)["data"]
    return data


def apply_changes_isolated(
    text: str, node: str, settings: Mapping[str, Any], *, session_kept: bool | None = None
) -> str:
    """Run ``editing.apply_changes``. Raises EditNotPossible and LoadingUnavailable."""
    changed = _run_edit("edited", text, node=node, settings=dict(settings), session_kept=session_kept)
    return str(changed["text"])


def _run_edit(operation: str, text: str, **arguments: Any) -> dict[str, Any]:
    try:
        answer = _request(operation, {"text": text} | arguments, None)
    except TooExpensive as error:
        raise EditNotPossible("The text takes too long to read. Change the setting in the text itself.") from error
    if "not_editable" in answer:
        raise EditNotPossible(answer["not_editable"])
    return answer


def _request(operation: str, arguments: Mapping[str, Any], files: FileProvider | None) -> dict[str, Any]:
    provider = files or NoFiles()

    def read(question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {"text": provider.read(str(question["path"]))}
        except FileUnavailable as error:
            return {"missing": str(error)}

    # Which user’s text it is, and that each has one at a time, is decided by ``services.loading``, for all processes.
    owner = uuid.uuid4().hex
    try:
        return POOL.run(operation, arguments, owner=owner, limits=Limits(**LIMITS), answering=read)
    except PoolUnavailable as error:
        raise LoadingUnavailable(f"the workflow could not be loaded: {error}; try again") from error
