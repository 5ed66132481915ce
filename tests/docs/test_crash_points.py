"""docs/crash-points.md describes every crash point, in the order of the code."""

from __future__ import annotations

import re

from executors_app.machine.crash_points import POINT_NAMES, processes_of
from tests.docs.documents import DOCS

ROW = re.compile(r"^\| `(?P<name>[a-z_.]+)` \| (?P<processes>[^|]+) \| .+ \| .+ \| .+\. \|$", re.MULTILINE)


def test_every_crash_point_is_described_with_its_processes() -> None:
    text = (DOCS / "crash-points.md").read_text(encoding="utf-8")
    described = [(row["name"], tuple(row["processes"].split(", "))) for row in ROW.finditer(text)]
    assert described == [(name, processes_of(name)) for name in POINT_NAMES]
