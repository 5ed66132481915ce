"""A workflow file, with the components that it names, as a workflow that can be run, and all that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from sessions_app.workflows.budget import Budget, OverBudget
from sessions_app.workflows.building import Builder
from sessions_app.workflows.findings import Findings
from sessions_app.workflows.graph import Scope, Workflow
from sessions_app.workflows.library import Directory, Library, Nothing, NotInLibrary, root_of
from sessions_app.workflows.limits import MAX_CONCURRENT, MAX_DEPTH, MAX_EDGES, MAX_NODES, MAX_WIRES
from sessions_app.workflows.nodes.component import ComponentSettings
from sessions_app.workflows.nodes.trigger import OF_ITSELF
from sessions_app.workflows.problems import InvalidWorkflow, Problem, Severity
from sessions_app.workflows.reading import Place, Source, read, refused
from sessions_app.workflows.repairing import without
from sessions_app.workflows.schema import Body, ComponentBody, Interface, Port, WorkflowFile

NAMED: Final = 20
"""Components that an error lists."""
MAX_PREFIX: Final = 200
"""Characters of a label that begin the name of an output."""
Found = tuple[Scope, tuple[Port, ...], tuple[Port, ...]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a file. ``workflow`` is None if a problem is an error."""

    workflow: Workflow | None
    problems: tuple[Problem, ...]

    @property
    def checked(self) -> Workflow:
        """The workflow; raises InvalidWorkflow where there is none."""
        if self.workflow is None:
            raise InvalidWorkflow(self.problems)
        return self.workflow


def load_file(path: Path) -> Loaded:
    """Load a file; what it names lies in the project around it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
        return Loaded(None, refused(str(path), 0, "unreadable", reason, "").problems)
    return load(raw, str(path), Directory(root_of(path)))


def load(text: str | bytes, name: str = "workflow", library: Library | None = None) -> Loaded:
    """Load a text; ``name`` stands in the problems, ``library`` has the files that it names."""
    return _Loader(library or Nothing()).load(text, name)


class _Loader:
    """Loads one file and the components it uses, each once."""

    def __init__(self, library: Library):
        self._library = library
        self.budget = Budget()
        self._files: dict[str, Found | None] = {}
        self._under_way: list[str] = []

    def load(self, text: str | bytes, name: str) -> Loaded:
        try:
            source = read(text, name)
        except InvalidWorkflow as error:
            return Loaded(None, error.problems)
        findings = Findings(source)
        written = _shaped(findings)
        try:
            root = _File(written, findings, self).root("workflow") if written else None
        except OverBudget as error:
            findings.error("too_many", str(error), "Make it smaller.", ())
            root = None
        if root and root.count > MAX_NODES:
            message = f"with its components the workflow has {root.count} nodes, more than {MAX_NODES}"
            findings.error("too_many", message, "Make it smaller.", ())
        elif root and _wires_in(root) > MAX_WIRES:
            message = f"with its components the workflow has more than {MAX_WIRES} connections"
            findings.error("too_many", message, "Make it smaller.", ())
        if findings.failed() or root is None or written is None:
            return Loaded(None, _in_order(findings.problems))
        workflow = Workflow(
            name=written.metadata.name,
            description=written.metadata.description or "",
            root=root,
            max_concurrent=written.max_concurrent or MAX_CONCURRENT,
            inputs=_declared(written.interface, root),
        )
        return Loaded(workflow, _in_order(findings.problems))

    def file(self, path: str, findings: Findings, place: Place, node: str) -> Found | None:
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

    def _read_file(self, path: str, findings: Findings, place: Place, node: str) -> Found | None:
        try:
            source = read(self._library.read(path), path)
        except NotInLibrary as error:
            findings.error("component", str(error), "Correct workflowPath.", place, node)
            return None
        except InvalidWorkflow as error:
            findings.take(error.problems)
            return None
        inner = Findings(source)
        written = _shaped(inner)
        root = _File(written, inner, self).root("component") if written else None
        findings.take(inner.problems)
        if root is None or written is None or inner.failed():
            return None
        return (root, *_interface(written.interface, root))

    def code(self, path: str) -> str:
        """The text of a function's file; raises NotInLibrary."""
        text = self._library.read(path)
        self.budget.spend("characters", len(text))
        return text


class _File:
    """One file while it is built."""

    def __init__(self, written: WorkflowFile, findings: Findings, loader: _Loader):
        self._written = written
        self._findings = findings
        self._loader = loader
        self._parts: dict[str, Found | None] = {}
        self._under_way: list[str] = []

    def root(self, kind: Any) -> Scope | None:
        self._read_code(self._written, ())
        for name, part in self._written.components.items():
            self._read_code(part, ("components", name))
            self._part(name, ("components", name), "")
        return Builder(self._written, (), self._findings, self._find, self._loader.budget).build(kind)

    def _find(self, settings: ComponentSettings, place: Place, node: str) -> Found | None:
        if settings.component_ref:
            return self._part(settings.component_ref, (*place, "componentRef"), node)
        if settings.workflow_path:
            return self._loader.file(settings.workflow_path, self._findings, (*place, "workflowPath"), node)
        self._findings.error("component", "it names no component", "Add workflowPath, or componentRef.", place, node)
        return None

    def _part(self, name: str, place: Place, node: str) -> Found | None:
        body = self._written.components.get(name)
        if body is None:
            known = ", ".join(islice(self._written.components, NAMED)) or "none"
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

    def _build(self, name: str, body: ComponentBody) -> Found | None:
        if len(self._under_way) > MAX_DEPTH // 4:
            place = ("components", name)
            self._findings.error("too_deep", "components lie within each other too deep", "Flatten them.", place)
            return None
        root = Builder(body, ("components", name), self._findings, self._find, self._loader.budget).build("component")
        return (root, *_interface(body.interface, root)) if root else None

    def _read_code(self, body: Body, place: Place) -> None:
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
            except NotInLibrary as error:
                self._findings.error(
                    "file", str(error), "Correct file.", (*place, "nodes", index, "data", "file"), node.id
                )


def _shaped(findings: Findings) -> WorkflowFile | None:
    """The file as its schema says, without what is misshapen; None where too little is left. Its size is first."""
    data = findings.source.data
    if not isinstance(data, dict):
        findings.error("shape", "a workflow is a mapping with version, metadata, nodes and edges", "", ())
        return None
    bodies: list[tuple[Place, Any]] = [((), data)]
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
        findings.misshapen(error, ())
        places = [one["loc"] for one in error.errors(include_url=False, include_input=False, include_context=False)]
    try:
        return WorkflowFile.model_validate(without(data, places))
    except ValidationError:
        return None


def _wires_in(scope: Scope) -> int:
    """The wires of a scope and of all within it; it has no more than MAX_NODES nodes."""
    return len(scope.wires) + sum(_wires_in(node.body) for node in scope.nodes.values() if node.body)


def _interface(interface: Interface | None, root: Scope) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
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


def _declared(interface: Interface | None, root: Scope) -> tuple[Port, ...]:
    """What a run is started with by name; of two with one name the first."""
    settings = [node.settings for node in root.nodes.values() if node.type == "trigger"]
    ports = [*(interface.inputs if interface else ())]
    ports += [port for one in settings for port in (*(one.inputs or ()), *(one.outputs or ()))]
    found: dict[str, Port] = {}
    for port in ports:
        if port.name not in OF_ITSELF:
            found.setdefault(port.name, port)
    return tuple(found.values())


def _in_order(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Errors first, each file from its top; none twice."""
    unique: Mapping[Problem, None] = dict.fromkeys(problems)
    return tuple(sorted(unique, key=lambda one: (one.severity != Severity.ERROR, one.file, one.line)))


__all__ = ["Loaded", "Source", "load", "load_file"]
