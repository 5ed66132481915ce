"""Drawings of workflows are complete, without overlaps, and escape all text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from django.core.management import CommandError, call_command

from sessions_app.workflows.language.graph import Scope
from sessions_app.workflows.loader.drawing import DrawingTooLarge, draw_inline_svg, draw_svg
from sessions_app.workflows.loader.loading import load_workflow
from tests.services import ROOT
from tests.workflows.test_loading import EXAMPLES
from tests.workflows.test_transitions_loops import nested
from tests.workflows.workflow_builder import load_file, node, workflow

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def parsed(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)  # noqa: S314  (drawn by us)


def names_in(scope: Scope, prefix: str = "") -> list[str]:
    found = []
    for one in scope.nodes.values():
        path = f"{prefix}{one.id}"
        found += [path, *(names_in(one.body, f"{path}/") if one.body else ())]
    return found


def rectangles(group: ElementTree.Element) -> list[Rectangle]:
    """Return left, top, right and bottom of the nodes directly inside a group."""
    found = []
    for one in group.findall(f"{SVG}g"):
        box = one.find(f"{SVG}rect")
        assert box is not None
        x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def check(group: ElementTree.Element, around: Rectangle) -> None:
    boxes = rectangles(group)
    for index, one in enumerate(boxes):
        assert not any(overlap(one, other) for other in boxes[index + 1 :])
        assert around[0] < one[0] and around[1] < one[1] and one[2] < around[2] and one[3] < around[3]
    for inner, box in zip(group.findall(f"{SVG}g"), boxes, strict=True):
        check(inner, box)


@pytest.mark.parametrize("text", [*(path.read_text() for path in EXAMPLES), nested("plain"), nested("component")])
def test_every_node_is_drawn_without_overlap(text: str) -> None:
    loaded = load_workflow(text).checked
    drawing = parsed(draw_svg(loaded))
    assert draw_svg(loaded) == draw_svg(load_workflow(text).checked)
    ids = [group.attrib["id"] for group in drawing.iter(f"{SVG}g")]
    assert sorted(ids) == sorted(f"node-{name}" for name in names_in(loaded.root))
    check(drawing, (0, 0, float(drawing.attrib["width"]), float(drawing.attrib["height"])))


def test_lines_have_titles_of_their_wires() -> None:
    drawing = draw_svg(load_file(ROOT / "docs/examples/workflows/review-until-approved.yaml").checked)
    titles = re.findall(r"<path[^>]*><title>([^<]*)</title>", drawing)
    assert "prev feedback → coder.iteratePrompt" in "\n".join(titles)
    assert "reviewer.approved → continue continue" in "\n".join(titles)
    back = draw_svg(load_file(ROOT / "docs/examples/workflows/pattern-b.yaml").checked)
    assert "gate sends back" in back


def test_texts_of_a_file_are_escaped() -> None:
    label = '"><script>alert(1)</script>&' + "x" * 100
    drawing = draw_svg(
        load_workflow(workflow([node("a", "wire", label=label)], metadata={"name": "</title><script>"})).checked
    )
    assert "<script" not in drawing
    assert label in next(parsed(drawing).iter(f"{SVG}g")).findtext(f"{SVG}title", "")


def test_command_draws_valid_files(tmp_path: Path) -> None:
    call_command("validate_workflow", str(EXAMPLES[0]), "--draw", str(tmp_path / "new"))
    assert (tmp_path / f"new/{EXAMPLES[0].stem}.svg").read_text().startswith("<svg ")
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("validate_workflow", str(EXAMPLES[0]), "--draw", str(tmp_path / "file"))


def test_drawing_beyond_the_limit_is_refused() -> None:
    many = load_workflow(workflow([node(f"n{number}", "wire") for number in range(200)])).checked
    assert len(draw_inline_svg(many, {}, 100_000)) <= 100_000
    with pytest.raises(DrawingTooLarge):
        draw_inline_svg(many, {}, 10_000)
