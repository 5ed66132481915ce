"""A function of the inputs: a body in JavaScript, or an expression in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from sessions_app.workflows import expressions
from sessions_app.workflows.graph import HIDDEN, Node
from sessions_app.workflows.nodes import (
    Ask,
    Beginning,
    Complaint,
    Done,
    Ending,
    Failed,
    Finished,
    Limited,
    Moment,
    NodeType,
    fitted,
)
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData
from sessions_app.workflows.values import Unfit


class FunctionSettings(NodeData):
    """Settings of a function. ``file`` is read into ``code`` when the workflow is loaded."""

    language: Literal["javascript", "python"] = "javascript"
    code: str | None = Field(default=None, max_length=100_000)
    file: str | None = None


def check(node: Node) -> Iterable[Complaint]:
    """There is code, and an expression is one."""
    settings = node.settings
    assert isinstance(settings, FunctionSettings)  # noqa: S101  (its type's)
    if not settings.code and not settings.file:
        yield Complaint(code="no_code", message="there is no code", fix="Add code, or file.")
    if settings.code and settings.language == "python":
        try:
            expressions.check(settings.code)
        except expressions.ExpressionError as error:
            yield Complaint(code="expression", message=str(error), fix="Write one expression.", key=("code",))


def begin(moment: Moment) -> Beginning:
    """What the limited process is asked."""
    settings = moment.node.settings
    assert isinstance(settings, FunctionSettings)  # noqa: S101  (its type's)
    inputs = {name: value for name, value in moment.inputs.items() if not name.startswith(HIDDEN)}
    return Ask({"kind": "function", "operation": settings.language, "code": settings.code or "", "inputs": inputs})


def end(node: Node, done: Done, limited: Limited) -> Ending:
    """``result`` has value, or error. An object with every declared output, or the only output itself."""
    result = done.result
    if result.get("error"):
        return Failed(str(result["error"]))
    value = result.get("value")
    names = [one.name for one in node.outputs]
    if not isinstance(value, dict) or (len(names) == 1 and names[0] not in value and _is_python(node)):
        if len(names) != 1 or not _is_python(node):
            return Failed(f"the function returned no object with {', '.join(names)}")
        value = {names[0]: value}
    missing = [name for name in names if name not in value]
    if missing:
        return Failed(f"the function returned no {', '.join(missing)}")
    try:
        return Finished(fitted(node.outputs, value))
    except Unfit as error:
        return Failed(f"the output {error}")


def _is_python(node: Node) -> bool:
    return isinstance(node.settings, FunctionSettings) and node.settings.language == "python"


TYPE = NodeType(
    name="function",
    title="Function",
    settings=FunctionSettings,
    outputs=(port("result"),),
    check=check,
    begin=begin,
    end=end,
    is_open=True,
)
