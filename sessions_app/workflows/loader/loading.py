"""Load a workflow file, with its components, as a graph that can be run, and with all its diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from sessions_app.workflows.language.diagnostics import (
    Diagnostic,
    DiagnosticCollector,
    InvalidWorkflow,
    PathInFile,
    Severity,
    remove_malformed,
)
from sessions_app.workflows.language.files import FileProvider, FileUnavailable, NoFiles
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
from sessions_app.workflows.nodes.control_flow import ComponentSettings
from sessions_app.workflows.nodes.trigger import BUILT_IN_OUTPUTS

MAX_COMPONENTS_LISTED: Final = 20
"""Components that an error lists."""
MAX_PREFIX: Final = 200
"""Characters of a label that become the prefix of an output name."""
LoadedComponent = tuple[Scope, tuple[Port, ...], tuple[Port, ...]]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of loading a file. ``workflow`` is None if one of the problems is an error."""

    workflow: WorkflowGraph | None
    problems: tuple[Diagnostic, ...]

    @property
    def checked(self) -> WorkflowGraph:
        """The workflow. Raises InvalidWorkflow if there is none."""
        if self.workflow is None:
            raise InvalidWorkflow(self.problems)
        return self.workflow


def load_workflow(text: str | bytes, name: str = "workflow", files: FileProvider | None = None) -> LoadResult:
    """Load a text. ``name`` is its file name in diagnostics, ``files`` provides the files that it names."""
    return _Loader(files or NoFiles()).load(text, name)


class _Loader:
    """Loads one file, and each component file that it uses once."""

    def __init__(self, files: FileProvider):
        self._files = files
        self.budget = Budget()
        self._components: dict[str, LoadedComponent | None] = {}
        self._loading: list[str] = []

    def load(self, text: str | bytes, name: str) -> LoadResult:
        try:
            source = read_text(text, name)
        except InvalidWorkflow as error:
            return LoadResult(None, error.problems)
        diagnostics = DiagnosticCollector(source)
        parsed = _parse_file(diagnostics)
        try:
            if parsed:
                root = _FileLoader(parsed, diagnostics, self).root("workflow")
            else:
                root = None
        except BudgetExceeded as error:
            diagnostics.error("too_many", str(error), "Make the workflow smaller.", ())
            root = None
        if root and root.count > MAX_NODES:
            message = f"with its components the workflow has {root.count} steps, more than {MAX_NODES}"
            diagnostics.error("too_many", message, "Make the workflow smaller.", ())
        elif root and _count_wires(root) > MAX_WIRES:
            message = f"with its components the workflow has more than {MAX_WIRES} connections"
            diagnostics.error("too_many", message, "Make the workflow smaller.", ())
        if diagnostics.failed() or root is None or parsed is None:
            return LoadResult(None, _sort_diagnostics(diagnostics.problems))
        workflow = WorkflowGraph(
            name=parsed.metadata.name,
            description=parsed.metadata.description or "",
            root=root,
            max_concurrent=parsed.max_concurrent or MAX_CONCURRENT,
            inputs=_declared_inputs(parsed.interface, root),
        )
        return LoadResult(workflow, _sort_diagnostics(diagnostics.problems))

    def file(self, path: str, diagnostics: DiagnosticCollector, place: PathInFile, node: str) -> LoadedComponent | None:
        """Return the component in a file. A file is read once, however its path is parsed."""
        path = str(PurePosixPath(path))
        if path in self._loading:
            cycle = " → ".join([*self._loading[self._loading.index(path) :], path])
            diagnostics.error(
                "recursion", f"components contain themselves: {cycle}", "Use a loop to repeat work.", place, node
            )
            return None
        if path not in self._components:
            if len(self._loading) >= MAX_DEPTH // 4:
                diagnostics.error(
                    "too_deep",
                    f"components are nested more than {MAX_DEPTH // 4} deep",
                    "Reduce the nesting.",
                    place,
                    node,
                )
                return None
            self._loading.append(path)
            self._components[path] = self._read_file(path, diagnostics, place, node)
            self._loading.pop()
        elif self._components[path] is None:
            diagnostics.error(
                "component",
                f"the component “{path}” has errors",
                "Correct the errors that are listed for it.",
                place,
                node,
            )
        return self._components[path]

    def _read_file(
        self, path: str, diagnostics: DiagnosticCollector, place: PathInFile, node: str
    ) -> LoadedComponent | None:
        try:
            source = read_text(self._files.read(path), path)
        except FileUnavailable as error:
            diagnostics.error(
                "component", str(error), "Correct workflowPath, which is relative to the project.", place, node
            )
            return None
        except InvalidWorkflow as error:
            diagnostics.take(error.problems)
            return None
        inner = DiagnosticCollector(source)
        parsed = _parse_file(inner)
        root = None
        if parsed:
            root = _FileLoader(parsed, inner, self).root("component")
        diagnostics.take(inner.problems)
        if root is None or parsed is None or inner.failed():
            return None
        inputs, outputs = _interface_ports(parsed.interface, root)
        return root, inputs, outputs

    def code(self, path: str) -> str:
        """Return the code in the file of a function. Raises FileUnavailable."""
        text = self._files.read(path)
        self.budget.spend("characters", len(text))
        return text


class _FileLoader:
    """Builds one file, with the components that it defines."""

    def __init__(self, parsed: WorkflowFile, diagnostics: DiagnosticCollector, loader: _Loader):
        self._parsed = parsed
        self._diagnostics = diagnostics
        self._loader = loader
        self._parts: dict[str, LoadedComponent | None] = {}
        self._loading: list[str] = []

    def root(self, kind: Any) -> Scope | None:
        self._read_code(self._parsed, ())
        for name, part in self._parsed.components.items():
            self._read_code(part, ("components", name))
            self._part(name, ("components", name), "")
        return ScopeBuilder(self._parsed, (), self._diagnostics, self._find, self._loader.budget).build(kind)

    def _find(self, settings: ComponentSettings, place: PathInFile, node: str) -> LoadedComponent | None:
        if settings.component_ref:
            return self._part(settings.component_ref, (*place, "componentRef"), node)
        if settings.workflow_path:
            return self._loader.file(settings.workflow_path, self._diagnostics, (*place, "workflowPath"), node)
        self._diagnostics.error(
            "component", "the step names no component", "Add workflowPath or componentRef.", place, node
        )
        return None

    def _part(self, name: str, place: PathInFile, node: str) -> LoadedComponent | None:
        body = self._parsed.components.get(name)
        if body is None:
            known = ", ".join(islice(self._parsed.components, MAX_COMPONENTS_LISTED)) or "none"
            fix = f"Its components are: {known}."
            self._diagnostics.error("component", f"the file defines no component “{name}”", fix, place, node)
            return None
        if name in self._loading:
            cycle = " → ".join([*self._loading[self._loading.index(name) :], name])
            self._diagnostics.error(
                "recursion", f"components contain themselves: {cycle}", "Use a loop to repeat work.", place, node
            )
            return None
        if name not in self._parts:
            self._loading.append(name)
            self._parts[name] = self._build(name, body)
            self._loading.pop()
        return self._parts[name]

    def _build(self, name: str, body: ComponentBody) -> LoadedComponent | None:
        if len(self._loading) > MAX_DEPTH // 4:
            place = ("components", name)
            self._diagnostics.error(
                "too_deep", f"components are nested more than {MAX_DEPTH // 4} deep", "Reduce the nesting.", place
            )
            return None
        root = ScopeBuilder(body, ("components", name), self._diagnostics, self._find, self._loader.budget).build(
            "component"
        )
        if root:
            return (root, *_interface_ports(body.interface, root))
        return None

    def _read_code(self, body: Body, place: PathInFile) -> None:
        """Read the code of functions that is in separate files."""
        for index, node in enumerate(body.nodes):
            path = node.data.get("file")
            is_function = (node.data.get("nodeType") or node.type) == "function"
            if not is_function or not isinstance(path, str) or node.data.get("code"):
                continue
            try:
                node.data = node.data | {"code": self._loader.code(path)}
            except FileUnavailable as error:
                self._diagnostics.error(
                    "file",
                    str(error),
                    "Correct “file”, which is relative to the project.",
                    (*place, "nodes", index, "data", "file"),
                    node.id,
                )


def _parse_file(diagnostics: DiagnosticCollector) -> WorkflowFile | None:
    """Return the parsed file without its malformed parts; None if too little is left.

    The size is checked first, so that a huge file is not parsed at all.
    """
    data = diagnostics.source.data
    if not isinstance(data, dict):
        diagnostics.error(
            "shape",
            "the file is not a mapping",
            "Write a mapping with version, metadata, nodes (the steps) and edges.",
            (),
        )
        return None
    bodies: list[tuple[PathInFile, Any]] = [((), data)]
    if isinstance(data.get("components"), dict):
        bodies += [(("components", name), body) for name, body in data["components"].items()]
    for key, most in (("nodes", MAX_NODES), ("edges", MAX_EDGES)):
        places: list[PathInFile] = []
        count = 0
        for place, body in bodies:
            if isinstance(body, dict) and isinstance(body.get(key), list):
                places.append((*place, key))
                count += len(body[key])
        if count > most:
            message = f"there are {count} {key}, more than {most}"
            fix = "Make the workflow smaller, or move parts to component files."
            diagnostics.error("too_many", message, fix, places[0])
            return None
    try:
        return WorkflowFile.model_validate(data)
    except ValidationError as error:
        diagnostics.add_malformed(error, ())
        details = error.errors(include_url=False, include_input=False, include_context=False)
    malformed = [detail["loc"] for detail in details]
    try:
        return WorkflowFile.model_validate(remove_malformed(data, malformed))
    except ValidationError:
        return None


def _count_wires(scope: Scope) -> int:
    """Return the number of wires in a scope and in all scopes inside it (at most MAX_NODES nodes)."""
    return len(scope.wires) + sum(_count_wires(node.body) for node in scope.nodes.values() if node.body)


def _interface_ports(interface: Interface | None, root: Scope) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the inputs and outputs of a component.

    Without an interface, the inputs are the outputs of its triggers, and the outputs those of its last nodes.
    """
    if interface is not None:
        return tuple(interface.inputs), tuple(interface.outputs)
    inputs: dict[str, Port] = {}
    for node in root.nodes.values():
        if node.type == "trigger":
            inputs |= {port.name: port for port in node.outputs}
    outputs: dict[str, Port] = {}
    leaves = [root.nodes[name] for name in root.leaves]
    for node in leaves:
        prefix = f"{node.label[:MAX_PREFIX]}_" if len(leaves) > 1 else ""
        for port in node.outputs:
            name = f"{prefix}{port.name}"
            outputs[name] = port.model_copy(update={"name": name})
    return tuple(inputs.values()), tuple(outputs.values())


def _declared_inputs(interface: Interface | None, root: Scope) -> tuple[Port, ...]:
    """Return the inputs that a run can be given by name; the first of two with the same name wins."""
    ports: list[Port] = []
    if interface:
        ports += interface.inputs
    for node in root.nodes.values():
        if node.type == "trigger":
            ports += node.settings.inputs or ()
            ports += node.settings.outputs or ()
    found: dict[str, Port] = {}
    for port in ports:
        if port.name not in BUILT_IN_OUTPUTS:
            found.setdefault(port.name, port)
    return tuple(found.values())


def _sort_diagnostics(problems: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics without duplicates: errors first, then by file and line."""
    unique: Mapping[Diagnostic, None] = dict.fromkeys(problems)
    return tuple(
        sorted(unique, key=lambda diagnostic: (diagnostic.severity != Severity.ERROR, diagnostic.file, diagnostic.line))
    )
