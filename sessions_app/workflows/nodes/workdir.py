"""A directory of the workspace, for nodes with an input ``cwd``."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from sessions_app.workflows.language.files import is_relative_below
from sessions_app.workflows.language.schema import NodeData, make_port
from sessions_app.workflows.language.values import TooLong, render_template
from sessions_app.workflows.nodes import BeginResult, NodeContext, NodeFailed, NodeFinished, NodeType


class WorkdirSettings(NodeData):
    """Settings of a directory."""

    path: str = Field(default=".", max_length=4096)


def template_texts(settings: WorkdirSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """The path may hold templates."""
    yield ("path",), settings.path


def begin_node(moment: NodeContext) -> BeginResult:
    """The path, unless it leads out of the workspace."""
    settings = moment.node.settings
    assert isinstance(settings, WorkdirSettings)  # noqa: S101  (its type's)
    try:
        path = render_template(settings.path, moment.look_up)
    except TooLong as error:
        return NodeFailed(f"the path is too long: {error}")
    return (
        NodeFinished({"path": path}) if is_relative_below(path) else NodeFailed(f"“{path}” leads out of the workspace")
    )


TYPE = NodeType(
    name="workdir",
    title="Working directory",
    settings=WorkdirSettings,
    inputs=(make_port("input"),),
    outputs=(make_port("path", "string"),),
    texts=template_texts,
    begin=begin_node,
)
