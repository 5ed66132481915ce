"""A workflow within a workflow: a file, or a part of this one."""

from __future__ import annotations

from typing import Any

from sessions_app.workflows.language.schema import NodeData
from sessions_app.workflows.nodes import NodeType


class ComponentSettings(NodeData):
    """Settings of a component: where it is, and values for inputs that are not wired."""

    workflow_path: str | None = None
    component_ref: str | None = None
    component_inputs: dict[str, Any] | None = None


TYPE = NodeType(name="component", title="Component", settings=ComponentSettings, is_open=True)
