#!/usr/bin/env python
"""Kandev's commands: ``manage.py serve``, ``supervise``, ``recover_sessions`` and Django's own."""

from __future__ import annotations

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line


def main() -> int:
    """Run one command; a bad environment is one line on stderr and exit status 2."""
    os.umask(0o077)  # a command may make the database, or another file of the data directory
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kandev.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        print(f"kandev: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
