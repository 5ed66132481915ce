"""A directory of the workspace, for nodes with an input ``cwd``."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from sessions_app.workflows.library import is_inside
from sessions_app.workflows.nodes import Beginning, Failed, Finished, Moment, NodeType
from sessions_app.workflows.ports import port
from sessions_app.workflows.schema import NodeData
from sessions_app.workflows.templates import TooLong, render


class WorkdirSettings(NodeData):
    """Settings of a directory."""

    path: str = Field(default=".", max_length=4096)


def texts(settings: WorkdirSettings) -> Iterable[tuple[tuple[str | int, ...], str]]:
    """The path may hold templates."""
    yield ("path",), settings.path


def begin(moment: Moment) -> Beginning:
    """The path, unless it leads out of the workspace."""
    settings = moment.node.settings
    assert isinstance(settings, WorkdirSettings)  # noqa: S101  (its type's)
    try:
        path = render(settings.path, moment.look_up)
    except TooLong as error:
        return Failed(f"the path is too long: {error}")
    return Finished({"path": path}) if is_inside(path) else Failed(f"“{path}” leads out of the workspace")


TYPE = NodeType(
    name="workdir",
    title="Working directory",
    settings=WorkdirSettings,
    inputs=(port("input"),),
    outputs=(port("path", "string"),),
    texts=texts,
    begin=begin,
)
