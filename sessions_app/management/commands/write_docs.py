"""``manage.py write_docs``: write the documents that are generated from the code."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from sessions_app.management.generated_docs import generate_documents


class Command(BaseCommand):
    """Write the generated files of docs/, or list those that are out of date."""

    help = "Write the generated documents: states, recovery, agents, settings, workflow schema and others."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add ``--check``."""
        parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a document is out of date")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        """Write the documents, or compare them with ``--check``."""
        directory = settings.BASE_DIR / "docs"
        stale = []
        for name, text in generate_documents().items():
            path = directory / name
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            stale.append(name)
            if not check:
                directory.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
                self.stdout.write(f"wrote docs/{name}")
        if check and stale:
            self.stderr.write(f"stale: {', '.join(f'docs/{name}' for name in stale)}; run manage.py write_docs")
            sys.exit(1)
