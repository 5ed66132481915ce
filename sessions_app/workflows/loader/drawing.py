"""Draw a workflow as SVG: nodes from left to right in the order of their dependencies, loops and components as boxes.

The drawing uses the text colour around it, so it fits every page. Each node and line has a title with its full text.
Pages add states and links. Their styles are in ``frontend/static/kandev/workflows.css``, because the content security
policy forbids styles within a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain
from typing import Final

from sessions_app.workflows.language.graph import (
    HIDDEN_PORT,
    GraphNode,
    Scope,
    SourceRef,
    TargetRef,
    Wire,
    WorkflowGraph,
)
from sessions_app.workflows.language.limits import MAX_DRAWING
from sessions_app.workflows.nodes.control_flow import GateSettings

WIDTH, HEIGHT = 168, 52
GAP_X, GAP_Y, PAD, HEAD = 56, 24, 20, 30
MAX_LABEL_LENGTH: Final = 22
"""Characters of a label that are drawn; the title has all of it."""
MAX_WIRES_IN_TITLE: Final = 50
"""Wires that the title of one line lists."""
_STYLE: Final = "".join(
    f".workflow-graph {rule}"
    for rule in (
        "text{font:13px system-ui,sans-serif;fill:currentColor}",
        ".type{font-size:11px;opacity:.75}",
        "rect{fill:none;stroke:currentColor;stroke-width:1.5}",
        ".node{fill:Canvas}",
        ".wall{stroke-dasharray:6 4;opacity:.7}",
        "path{fill:none;stroke:currentColor;opacity:.7}",
        ".back{stroke-dasharray:3 3}",
        ".tip{fill:currentColor;stroke:none;opacity:1}",
    )
)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class NodeMark:
    """What a page adds to a node: a CSS class (``tone``), the label of its state (``word``), and a link."""

    tone: str = ""
    word: str = ""
    href: str = ""


NodeMarks = Mapping[str, NodeMark]
"""Marks by path: ``loop/coder`` is the node *coder* in *loop*, in any iteration."""


class DrawingTooLarge(Exception):
    """The drawing would have more characters than allowed."""


@dataclass(slots=True)
class NodeBox:
    """A node and its position. ``boxes`` are those inside it; all coordinates are those of the whole drawing."""

    node: GraphNode
    width: float = WIDTH
    height: float = HEIGHT
    x: float = 0
    y: float = 0
    boxes: dict[str, NodeBox] = field(default_factory=dict)

    def move(self, x: float, y: float) -> None:
        """Move the box with everything inside it."""
        self.x, self.y = self.x + x, self.y + y
        for box in self.boxes.values():
            box.move(x, y)


def draw_svg(workflow: WorkflowGraph) -> str:
    """Return the drawing as one SVG document."""
    return _render_svg(workflow, {}, f'role="img"><title>{escape(workflow.name)}</title><style>{_STYLE}</style>')


def draw_inline_svg(workflow: WorkflowGraph, marks: NodeMarks, limit: int = MAX_DRAWING) -> str:
    """Return the drawing as a part of a page, with its marks. Raises DrawingTooLarge beyond ``limit`` characters."""
    return _render_svg(workflow, marks, f'role="group" aria-label="Drawing of {escape(workflow.name)}">', limit)


def _render_svg(workflow: WorkflowGraph, marks: NodeMarks, head: str, limit: float = math.inf) -> str:
    boxes, width, height = _layout_scope(workflow.root)
    for box in boxes.values():
        box.move(PAD, PAD)
    drawings = [_draw_box(box, "", marks) for box in boxes.values()]
    parts: list[str] = []
    length = 0
    for part in chain(_draw_wires(workflow.root, boxes, None), *drawings):
        # Checked while the drawing grows, so that a huge one costs no more than the limit.
        length += len(part)
        if length > limit:
            raise DrawingTooLarge
        parts.append(part)
    width, height = width + 2 * PAD, height + 2 * PAD
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="workflow-graph" {size} {head}'
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(parts)}</svg>\n"
    )


def _layout_scope(scope: Scope) -> tuple[dict[str, NodeBox], float, float]:
    """Return the boxes of a scope, relative to its corner, and their total width and height."""
    boxes = {name: _layout_node(scope.nodes[name]) for name in scope.order}
    columns: dict[int, list[NodeBox]] = {}
    depth: dict[str, int] = {}
    for name in scope.order:
        depth[name] = 1 + max((depth[source] for source in scope.waits_for[name]), default=-1)
        columns.setdefault(depth[name], []).append(boxes[name])
    x = height = 0.0
    for _, column in sorted(columns.items()):
        y = 0.0
        for box in column:
            box.move(x, y)
            y += box.height + GAP_Y
        height = max(height, y - GAP_Y)
        x += max(box.width for box in column) + GAP_X
    return boxes, max(x - GAP_X, 0), height


def _layout_node(node: GraphNode) -> NodeBox:
    if node.body is None:
        return NodeBox(node)
    boxes, width, height = _layout_scope(node.body)
    for box in boxes.values():
        box.move(2 * PAD, HEAD + PAD)
    return NodeBox(node, max(width + 4 * PAD, WIDTH), max(height + HEAD + 2 * PAD, HEIGHT), boxes=boxes)


def _draw_box(box: NodeBox, prefix: str, marks: NodeMarks) -> Iterator[str]:
    node, path = box.node, f"{prefix}{box.node.id}"
    mark = marks.get(path, NodeMark())
    yield f'<g id="node-{escape(path)}"><title>{escape(f"{node.label} ({node.type} {node.id})")}</title>'
    face = "".join(_draw_box_face(box, mark))
    if mark.href:
        name = node.label
        if mark.word:
            name = f"{name}: {mark.word}"
        face = f'<a href="{escape(mark.href)}" data-node="{escape(path)}" aria-label="{escape(name)}">{face}</a>'
    yield face
    if node.body is not None:
        yield from _draw_wires(node.body, box.boxes, box)
    for inner in box.boxes.values():
        yield from _draw_box(inner, f"{path}/", marks)
    yield "</g>"


def _draw_box_face(box: NodeBox, mark: NodeMark) -> Iterator[str]:
    """Yield the box and its texts."""
    node = box.node
    label = node.label
    if len(label) > MAX_LABEL_LENGTH:
        label = f"{label[: MAX_LABEL_LENGTH - 1]}…"
    label = escape(label)
    kind = node.type
    if mark.word:
        kind = f"{kind} · {mark.word}"
    kind = escape(kind)
    css_class = "wall" if node.body else "node"
    if mark.tone:
        css_class = f"{css_class} {mark.tone}"
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    yield f'<rect class="{css_class}" rx="8" {place}/>'
    if node.body is not None:
        yield f'<text x="{box.x + 12:g}" y="{box.y + 20:g}">{label} <tspan class="type">{kind}</tspan></text>'
        return
    yield f'<text x="{box.x + 12:g}" y="{box.y + 21:g}">{label}</text>'
    yield f'<text class="type" x="{box.x + 12:g}" y="{box.y + 38:g}">{kind}</text>'


def _draw_wires(scope: Scope, boxes: Mapping[str, NodeBox], around: NodeBox | None) -> Iterator[str]:
    """Yield one line for all wires between the same two points; its title lists the wires."""
    lines: dict[tuple[Point, Point], list[Wire]] = {}
    for wire in scope.wires:
        begin, end = _line_start(wire.source, boxes, around), _line_end(wire.target, boxes, around)
        if begin is not None and end is not None:
            lines.setdefault((begin, end), []).append(wire)
    for ((x1, y1), (x2, y2)), wires in lines.items():
        bend = max(abs(x2 - x1) / 2, 16)
        back = all(wire.source.kind == "prev" or wire.target.kind == "current" for wire in wires)
        shape = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
        yield _draw_line(shape, _line_title(wires), back=back)
    yield from _draw_retry_lines(scope, boxes)


def _draw_retry_lines(scope: Scope, boxes: Mapping[str, NodeBox]) -> Iterator[str]:
    """Yield a line from each gate to its retry target."""
    for name in scope.gates:
        gate, target = boxes[name], boxes[scope.nodes[name].settings_of(GateSettings).retry_target]
        (x1, y1), (x2, y2) = ((box.x + box.width / 2, box.y + box.height) for box in (gate, target))
        low = max(y1, y2) + PAD
        shape = f"M{x1:g} {y1:g}C{x1:g} {low:g} {x2:g} {low:g} {x2:g} {y2:g}"
        yield _draw_line(shape, f"{name} sends back", back=True)


def _draw_line(shape: str, title: str, *, back: bool) -> str:
    kind = "back" if back else "on"
    return f'<path class="{kind}" marker-end="url(#end)" d="{shape}"><title>{escape(title)}</title></path>'


def _line_start(ref: SourceRef, boxes: Mapping[str, NodeBox], around: NodeBox | None) -> Point | None:
    if ref.kind == "node":
        box = boxes[ref.node]
        return box.x + box.width, box.y + min(box.height, HEIGHT) / 2
    if around is None:
        return None
    return (around.x, around.y + HEAD)


def _line_end(target: TargetRef, boxes: Mapping[str, NodeBox], around: NodeBox | None) -> Point | None:
    if target.kind == "node":
        return boxes[target.node].x, boxes[target.node].y + min(boxes[target.node].height, HEIGHT) / 2
    if around is None:
        return None
    return (around.x + around.width, around.y + HEAD)


def _line_title(wires: Sequence[Wire]) -> str:
    more = len(wires) - MAX_WIRES_IN_TITLE
    titles = list(dict.fromkeys(map(_wire_title, wires[:MAX_WIRES_IN_TITLE])))
    if more > 0:
        titles.append(f"… and {more} more")
    return "\n".join(titles)


def _wire_title(wire: Wire) -> str:
    if wire.source.node:
        source = f"{wire.source.node}.{wire.source.port}"
    else:
        source = f"{wire.source.kind} {wire.source.port}"
    if wire.target.node:
        target = f"{wire.target.node}.{wire.target.port}"
    else:
        target = f"{wire.target.kind} {wire.target.port}"
    return f"{source} → {target}".replace(HIDDEN_PORT, "")
