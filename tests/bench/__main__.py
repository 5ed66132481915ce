"""Run the benchmarks, store and compare their results: ``make bench``.

Exit status 1 if a limit is exceeded, a part failed or a row is worse than in the file it is compared with; 2 for an
invalid argument. A part whose service is missing is skipped.
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from pathlib import Path

import django
from rich.console import Console

from tests import environment  # noqa: F401  (a data directory of its own, before there are settings)
from tests.bench.keeping import BenchFile, NoBenchFile

WIDE = 170
"""Characters per line if the output is not a terminal."""


def main() -> int:
    """Measure, print, store and compare; return the exit status."""
    parser = _parser()
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    try:
        before = BenchFile.read(options.compare) if options.compare else None
        run = BenchFile.read(options.read) if options.read else _measured(parser, options)
    except NoBenchFile as error:
        parser.error(str(error))
    from tests.bench import comparing, report  # noqa: PLC0415  (models want the settings)

    if not options.read:
        run.write(options.out)
    console.print(report.figures_table(run.figures))
    if run.points:
        console.print(report.points_table(run.points))
    console.print(report.floors_table(run.floors))
    if run.skipped:
        console.print(report.skipped_table(run.skipped))
    if not options.read:
        console.print(f"Kept in {options.out}; compare with it by COMPARE={options.out}.")
    if before is not None:
        console.print(comparing.comparison(before, run))
    if options.publish:
        _publish(run, console)
    got_worse = before is not None and comparing.is_worse(comparing.changes(before, run))
    failed = any(figure.is_over for figure in run.figures) or any(one.failed for one in run.skipped)
    return 1 if got_worse or failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny counts: only to see that everything runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="these parts alone")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often what is quick is done again")
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="the file to keep (default: %(default)s)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier file: which rows got worse")
    parser.add_argument("--read", type=Path, metavar="FILE", help="measure nothing, take this file")
    parser.add_argument("--publish", action="store_true", help="into docs/: bench.json, performance.md, the pictures")
    return parser


def _measured(parser: argparse.ArgumentParser, options: argparse.Namespace) -> BenchFile:
    django.setup()
    logging.disable(logging.WARNING)
    from tests.bench import run  # noqa: PLC0415  (models want the settings above)

    if unknown := set(options.only) - set(run.PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(run.PARTS)}")
    sizes = run.QUICK if options.quick else run.FULL
    found = run.everything(replace(sizes, rounds=options.rounds or sizes.rounds), options.only)
    return BenchFile.of_now(quick=options.quick, **vars(found))


def _publish(run: BenchFile, console: Console) -> None:
    from tests.bench import publishing  # noqa: PLC0415  (with the others)

    for path in publishing.publish(run):
        console.print(f"wrote {path.relative_to(publishing.DOCS.parent)}")


if __name__ == "__main__":
    sys.exit(main())
