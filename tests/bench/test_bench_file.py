"""Bench files are read again, compared, drawn and published in the documents."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest
from rich.console import Console

from tests.bench import pictures, publishing, run
from tests.bench.__main__ import main
from tests.bench.comparing import changes, is_worse
from tests.bench.figures import Figure, Floor, Point, Skipped
from tests.bench.keeping import BenchFile, NoBenchFile
from tests.services import ROOT, SERVICES

SWEEP = Figure("sweep of 10", 0.2, "bare GETs", 0.1, limit=3.0)
POINTS = [Point("sweep, live sessions", size, size * 1e-3, "bare GETs", size * 1e-4) for size in (10, 100, 1000)]
RUN = BenchFile.of_now(quick=True, figures=[SWEEP], points=POINTS, floors=[Floor("a commit", 300.0, 301.3)])


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    RUN.write(tmp_path / "bench.json")
    assert BenchFile.read(tmp_path / "bench.json") == RUN
    assert {"cores", "processor", "python", "sqlite"} < set(RUN.machine)
    assert len(RUN.commit) == 40


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"figures": [{}], "points": [], "floors": []}'])
def test_invalid_file_is_refused_with_a_reason(tmp_path: Path, text: str) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(NoBenchFile, match="no file that"):
        BenchFile.read(tmp_path / "bench.json")


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (SWEEP, "same"),
        (replace(SWEEP, amount=0.4, floor_amount=0.2), "same"),  # a slower machine
        (replace(SWEEP, amount=0.4), "worse"),
        (replace(SWEEP, amount=0.1), "better"),
    ],
)
def test_comparison_uses_ratios_not_seconds(after: Figure, verdict: str) -> None:
    found = changes(RUN, replace(RUN, figures=[after]))
    assert [one.verdict for one in found] == [verdict]
    assert is_worse(found) == (verdict == "worse")


def test_rows_of_only_one_run_are_reported() -> None:
    other = replace(RUN, figures=[replace(SWEEP, row="another")])
    assert [(one.row, one.verdict) for one in changes(RUN, other)] == [("another", "new"), ("sweep of 10", "gone")]


def test_comparison_fails_when_a_row_got_worse(tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    RUN.write(before)
    replace(RUN, figures=[replace(SWEEP, amount=0.25, floor_amount=0.01, limit=None)]).write(after)
    argv = [sys.executable, "-W", "error", "-m", "tests.bench", "--compare", str(before), "--read", str(after)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "worse" in done.stdout


def test_run_with_a_failed_part_fails_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skipped = [Skipped("screen", "no Chromium is installed"), Skipped("storm", "AssertionError: late", failed=True)]
    for failed, parts in ((0, skipped[:1]), (1, skipped)):
        replace(RUN, skipped=parts).write(tmp_path / "bench.json")
        monkeypatch.setattr("sys.argv", ["bench", "--read", str(tmp_path / "bench.json")])
        assert main() == failed
    assert {"screen no Chromium is installed", "storm AssertionError: late"} <= _rows(capsys.readouterr().out)


def _rows(printed: str) -> set[str]:
    return {" ".join(line.replace("│", " ").split()) for line in printed.splitlines()}


@pytest.mark.parametrize(
    ("needed", "measure", "expected"),
    [
        ("", lambda world, sizes: [SWEEP, *POINTS], []),
        ("nothing", lambda world, sizes: [1 / 0], [Skipped("trial", "nothing is not installed")]),
        ("", lambda world, sizes: [1 / 0], [Skipped("trial", "ZeroDivisionError: division by zero", failed=True)]),
    ],
    ids=["measured", "skipped", "failed"],
)
def test_part_without_rows_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, needed: str, measure: run.Part, expected: list[Skipped]
) -> None:
    monkeypatch.setattr(run, "PARTS", {"trial": measure})
    monkeypatch.setattr(run, "NEEDS", {"trial": [needed] if needed else []})
    monkeypatch.setitem(SERVICES, "nothing", lambda: "nothing is not installed")
    results = run.Results()
    run._measure("trial", Mock(), run.QUICK, results, Console(file=StringIO()))
    assert results.skipped == expected
    assert results.figures == ([] if expected else [SWEEP])
    assert results.points == ([] if expected else POINTS)


def test_picture_is_valid_and_accessible() -> None:
    root = ElementTree.fromstring(pictures.picture("a < b", POINTS))  # noqa: S314  (our own)
    texts = ["".join(element.itertext()) for element in root.iter()]
    assert any("10: 10 ms; 100: 100 ms; 1,000: 1 s" in text for text in texts)
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert [line.get("points", "").count(",") for line in lines] == [3, 3]


def test_documents_match_the_stored_file() -> None:
    page = publishing.PAGE.read_text(encoding="utf-8")
    written = page.partition(publishing.BEGIN)[2].partition(publishing.END)[0]
    assert written
    if publishing.KEPT.exists():
        assert written == publishing.tables(BenchFile.read(publishing.KEPT))
