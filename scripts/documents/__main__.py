"""``python -m scripts.documents [--check]``: write the generated documents, or list those that are out of date."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import django

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Return the exit status: 1 if ``--check`` found a document that is out of date."""
    parser = argparse.ArgumentParser(prog="make docs", description="Write the generated documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a document is out of date")
    is_check = parser.parse_args().check
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")
    django.setup()
    from scripts.documents.generated import write_documents  # noqa: PLC0415 - its imports need Django

    stale = write_documents(ROOT, check=is_check)
    for name in stale:
        sys.stdout.write(f"stale: {name}; run make docs\n" if is_check else f"wrote {name}\n")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
