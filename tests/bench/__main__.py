"""Run the benchmarks: ``python -m tests.bench [--quick]``; exit code 1 where a limit is broken."""

from __future__ import annotations

import argparse
import logging
import sys

import django
from rich.console import Console

from tests import environment  # noqa: F401  (a data directory of its own, before there are settings)

WIDE = 150
"""Characters of a line where there is no terminal."""


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny counts: only to see that everything runs")
    asked = parser.parse_args()
    django.setup()
    logging.disable(logging.WARNING)
    from tests.bench import report, run  # noqa: PLC0415  (models want the settings above)

    figures, floors = run.everything(run.QUICK if asked.quick else run.FULL)
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    console.print(report.figures_table(figures), report.floors_table(floors))
    return 1 if any(figure.is_over for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
