"""``manage.py validate_workflow``: check workflow files without running them."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from sessions_app.kernel.rules.wording import plural
from sessions_app.management.output import VisibleCommand
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.loader import client, drawing

EXIT_INVALID: Final = 2


class Command(VisibleCommand):
    """Check files, without the database and without reading files outside their project."""

    help = "Check workflow files: print every error and warning with its file, line, step and fix."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the files, and the directory for drawings."""
        parser.usage = SUPPRESS  # otherwise an invalid argument prints the long usage
        parser.add_argument(
            "--draw", metavar="DIR", type=Path, help="write an SVG drawing of each valid file to this directory"
        )
        parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a workflow in YAML or JSON")

    def handle(self, *args: Any, files: list[Path], draw: Path | None, **options: Any) -> None:
        """Check the files. Exit with 0 if all can be run (warnings are allowed), or 2 if one cannot."""
        try:
            loaded = {file: client.load_file_isolated(file).loaded for file in files}
        except client.LoadingUnavailable as error:
            raise CommandError(f"no file could be checked: {error}; try again", returncode=EXIT_INVALID) from error
        for file, found in loaded.items():
            for problem in found.problems:
                self.stdout.write(str(problem))
            if found.workflow is not None:
                count = found.workflow.root.count
                if draw is not None:
                    _draw(found.workflow, draw / f"{file.stem}.svg")
                self.stdout.write(f"{file}: valid, {plural(count, '1 step', '{} steps')}")
        if any(found.workflow is None for found in loaded.values()):
            sys.exit(EXIT_INVALID)


def _draw(workflow: WorkflowGraph, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawing.draw_svg(workflow), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}", returncode=EXIT_INVALID) from error
