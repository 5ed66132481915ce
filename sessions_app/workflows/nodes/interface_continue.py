"""The edge of a component, or of a loop of the older style: it never runs, its lines become the scope's own."""

from __future__ import annotations

from sessions_app.workflows.language.schema import NodeData
from sessions_app.workflows.nodes import NodeType

TYPE = NodeType(name="interface-continue", title="Interface: continue", settings=NodeData, is_open=True)
