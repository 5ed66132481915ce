"""A workflow file, with the components that it names, as a workflow that can be run, and all that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from sessions_app.workflows.language.diagnostics import (
    Diagnostic,
    DiagnosticCollector,
    InvalidWorkflow,
    ParsedText,
    PathInFile,
    Severity,
    invalid_workflow,
    remove_malformed,
)
from sessions_app.workflows.language.files import (
    DirectoryFiles,
    FileProvider,
    FileUnavailable,
    NoFiles,
    project_root_of,
)
from sessions_app.workflows.language.graph import Scope, WorkflowGraph
from sessions_app.workflows.language.limits import (
    MAX_CONCURRENT,
    MAX_DEPTH,
    MAX_EDGES,
    MAX_NODES,
    MAX_WIRES,
    Budget,
    BudgetExceeded,
)
from sessions_app.workflows.language.reader import read_text
from sessions_app.workflows.language.schema import Body, ComponentBody, Interface, Port, WorkflowFile
from sessions_app.workflows.loader.builder import ScopeBuilder
from sessions_app.workflows.nodes.scopes import ComponentSettings
from sessions_app.workflows.nodes.trigger import BUILT_IN_OUTPUTS

MAX_COMPONENTS_LISTED: Final = 20
"""Components that an error lists."""
MAX_PREFIX: Final = 200
"""Characters of a label that begin the name of an output."""
LoadedComponent = tuple[Scope, tuple[Port, ...], tuple[Port, ...]]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What came of a file. ``workflow`` is None if a problem is an error."""

    workflow: WorkflowGraph | None
    problems: tuple[Diagnostic, ...]

    @property
    def checked(self) -> WorkflowGraph:
        """The workflow; raises InvalidWorkflow where there is none."""
        if self.workflow is None:
            raise InvalidWorkflow(self.problems)
        return self.workflow


def load_workflow_file(path: Path) -> LoadResult:
    """Load a file; what it names lies in the project around it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
        return LoadResult(None, invalid_workflow(str(path), 0, "unreadable", reason, "").problems)
    return load_workflow(raw, str(path), DirectoryFiles(project_root_of(path)))


def load_workflow(text: str | bytes, name: str = "workflow", library: FileProvider | None = None) -> LoadResult:
    """Load a text; ``name`` stands in the problems, ``library`` has the files that it names."""
    return _Loader(library or NoFiles()).load(text, name)


class _Loader:
    """Loads one file and the components it uses, each once."""

    def __init__(self, library: FileProvider):
        self._library = library
        self.budget = Budget()
        self._files: dict[str, LoadedComponent | None] = {}
        self._under_way: list[str] = []

    def load(self, text: str | bytes, name: str) -> LoadResult:
        try:
            source = read_text(text, name)
        except InvalidWorkflow as error:
            return LoadResult(None, error.problems)
        findings = DiagnosticCollector(source)
        written = _parse_file(findings)
        try:
            root = _FileLoader(written, findings, self).root("workflow") if written else None
        except BudgetExceeded as error:
            findings.error("too_many", str(error), "Make it smaller.", ())
            root = None
        if root and root.count > MAX_NODES:
            message = f"with its components the workflow has {root.count} nodes, more than {MAX_NODES}"
            findings.error("too_many", message, "Make it smaller.", ())
        elif root and _count_wires(root) > MAX_WIRES:
            message = f"with its components the workflow has more than {MAX_WIRES} connections"
            findings.error("too_many", message, "Make it smaller.", ())
        if findings.failed() or root is None or written is None:
            return LoadResult(None, _sort_diagnostics(findings.problems))
        workflow = WorkflowGraph(
            name=written.metadata.name,
            description=written.metadata.description or "",
            root=root,
            max_concurrent=written.max_concurrent or MAX_CONCURRENT,
            inputs=_declared_inputs(written.interface, root),
        )
        return LoadResult(workflow, _sort_diagnostics(findings.problems))

    def file(self, path: str, findings: DiagnosticCollector, place: PathInFile, node: str) -> LoadedComponent | None:
        """The component in a file; one that was read is not read again, however its path is written."""
        path = str(PurePosixPath(path))
        if path in self._under_way:
            ring = " → ".join([*self._under_way[self._under_way.index(path) :], path])
            findings.error("recursion", f"components are made of themselves: {ring}", "Use a loop.", place, node)
            return None
        if path not in self._files:
            if len(self._under_way) >= MAX_DEPTH // 4:
                findings.error("too_deep", "components lie within each other too deep", "Flatten them.", place, node)
                return None
            self._under_way.append(path)
            self._files[path] = self._read_file(path, findings, place, node)
            self._under_way.pop()
        elif self._files[path] is None:
            findings.error("component", f"the component “{path}” is wrong", "See its own problems.", place, node)
        return self._files[path]

    def _read_file(
        self, path: str, findings: DiagnosticCollector, place: PathInFile, node: str
    ) -> LoadedComponent | None:
        try:
            source = read_text(self._library.read(path), path)
        except FileUnavailable as error:
            findings.error("component", str(error), "Correct workflowPath.", place, node)
            return None
        except InvalidWorkflow as error:
            findings.take(error.problems)
            return None
        inner = DiagnosticCollector(source)
        written = _parse_file(inner)
        root = _FileLoader(written, inner, self).root("component") if written else None
        findings.take(inner.problems)
        if root is None or written is None or inner.failed():
            return None
        return (root, *_interface_ports(written.interface, root))

    def code(self, path: str) -> str:
        """The text of a function's file; raises NotInLibrary."""
        text = self._library.read(path)
        self.budget.spend("characters", len(text))
        return text


class _FileLoader:
    """One file while it is built."""

    def __init__(self, written: WorkflowFile, findings: DiagnosticCollector, loader: _Loader):
        self._written = written
        self._findings = findings
        self._loader = loader
        self._parts: dict[str, LoadedComponent | None] = {}
        self._under_way: list[str] = []

    def root(self, kind: Any) -> Scope | None:
        self._read_code(self._written, ())
        for name, part in self._written.components.items():
            self._read_code(part, ("components", name))
            self._part(name, ("components", name), "")
        return ScopeBuilder(self._written, (), self._findings, self._find, self._loader.budget).build(kind)

    def _find(self, settings: ComponentSettings, place: PathInFile, node: str) -> LoadedComponent | None:
        if settings.component_ref:
            return self._part(settings.component_ref, (*place, "componentRef"), node)
        if settings.workflow_path:
            return self._loader.file(settings.workflow_path, self._findings, (*place, "workflowPath"), node)
        self._findings.error("component", "it names no component", "Add workflowPath, or componentRef.", place, node)
        return None

    def _part(self, name: str, place: PathInFile, node: str) -> LoadedComponent | None:
        body = self._written.components.get(name)
        if body is None:
            known = ", ".join(islice(self._written.components, MAX_COMPONENTS_LISTED)) or "none"
            fix = f"The file has {known}."
            self._findings.error("component", f"there is no component “{name}” in this file", fix, place, node)
            return None
        if name in self._under_way:
            ring = " → ".join([*self._under_way[self._under_way.index(name) :], name])
            self._findings.error("recursion", f"components are made of themselves: {ring}", "Use a loop.", place, node)
            return None
        if name not in self._parts:
            self._under_way.append(name)
            self._parts[name] = self._build(name, body)
            self._under_way.pop()
        return self._parts[name]

    def _build(self, name: str, body: ComponentBody) -> LoadedComponent | None:
        if len(self._under_way) > MAX_DEPTH // 4:
            place = ("components", name)
            self._findings.error("too_deep", "components lie within each other too deep", "Flatten them.", place)
            return None
        root = ScopeBuilder(body, ("components", name), self._findings, self._find, self._loader.budget).build(
            "component"
        )
        return (root, *_interface_ports(body.interface, root)) if root else None

    def _read_code(self, body: Body, place: PathInFile) -> None:
        """The code of functions that lies in files of its own."""
        for index, node in enumerate(body.nodes):
            path = node.data.get("file")
            if (
                (node.data.get("nodeType") or node.type) != "function"
                or not isinstance(path, str)
                or node.data.get("code")
            ):
                continue
            try:
                node.data = {**node.data, "code": self._loader.code(path)}
            except FileUnavailable as error:
                self._findings.error(
                    "file", str(error), "Correct file.", (*place, "nodes", index, "data", "file"), node.id
                )


def _parse_file(findings: DiagnosticCollector) -> WorkflowFile | None:
    """The file as its schema says, without what is misshapen; None where too little is left. Its size is first."""
    data = findings.source.data
    if not isinstance(data, dict):
        findings.error("shape", "a workflow is a mapping with version, metadata, nodes and edges", "", ())
        return None
    bodies: list[tuple[PathInFile, Any]] = [((), data)]
    if isinstance(data.get("components"), dict):
        bodies += [(("components", name), body) for name, body in data["components"].items()]
    for key, most in (("nodes", MAX_NODES), ("edges", MAX_EDGES)):
        parts = [
            (place, body[key]) for place, body in bodies if isinstance(body, dict) and isinstance(body.get(key), list)
        ]
        count = sum(len(part) for _, part in parts)
        if count > most:
            message = f"there are {count} {key}, more than {most}"
            findings.error("too_many", message, "Make it smaller, or use components.", (*parts[0][0], key))
            return None
    try:
        return WorkflowFile.model_validate(data)
    except ValidationError as error:
        findings.add_malformed(error, ())
        places = [one["loc"] for one in error.errors(include_url=False, include_input=False, include_context=False)]
    try:
        return WorkflowFile.model_validate(remove_malformed(data, places))
    except ValidationError:
        return None


def _count_wires(scope: Scope) -> int:
    """The wires of a scope and of all within it; it has no more than MAX_NODES nodes."""
    return len(scope.wires) + sum(_count_wires(node.body) for node in scope.nodes.values() if node.body)


def _interface_ports(interface: Interface | None, root: Scope) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """What a component takes and gives; a plain workflow takes what its triggers give, and gives its last outputs."""
    if interface is not None:
        return tuple(interface.inputs), tuple(interface.outputs)
    inputs = {one.name: one for node in root.nodes.values() if node.type == "trigger" for one in node.outputs}
    outputs: dict[str, Port] = {}
    leaves = [root.nodes[name] for name in root.leaves]
    for node in leaves:
        prefix = f"{node.label[:MAX_PREFIX]}_" if len(leaves) > 1 else ""
        outputs |= {
            f"{prefix}{one.name}": one.model_copy(update={"name": f"{prefix}{one.name}"}) for one in node.outputs
        }
    return tuple(inputs.values()), tuple(outputs.values())


def _declared_inputs(interface: Interface | None, root: Scope) -> tuple[Port, ...]:
    """What a run is started with by name; of two with one name the first."""
    settings = [node.settings for node in root.nodes.values() if node.type == "trigger"]
    ports = [*(interface.inputs if interface else ())]
    ports += [port for one in settings for port in (*(one.inputs or ()), *(one.outputs or ()))]
    found: dict[str, Port] = {}
    for port in ports:
        if port.name not in BUILT_IN_OUTPUTS:
            found.setdefault(port.name, port)
    return tuple(found.values())


def _sort_diagnostics(problems: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Errors first, each file from its top; none twice."""
    unique: Mapping[Diagnostic, None] = dict.fromkeys(problems)
    return tuple(sorted(unique, key=lambda one: (one.severity != Severity.ERROR, one.file, one.line)))


__all__ = ["LoadResult", "ParsedText", "load_workflow", "load_workflow_file"]
