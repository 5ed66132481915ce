"""``manage.py demo``: the restart story in the terminal (``make demo``)."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management import BaseCommand, CommandError
from rich.console import Console

from sessions_app.management.restart_demo import RestartDemo
from sessions_app.management.temporary_deployment import DemoFailed, TemporaryDeployment


class Command(BaseCommand):
    """Kills everything that can be killed, and shows what becomes of an agent's work."""

    help = "Show, with real processes in a directory of its own, what a restart does to an agent: nothing."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How long the first turn takes."""
        parser.add_argument("--work", type=int, default=20, help="seconds of the first turn (default: %(default)s)")

    def handle(self, *args: Any, work: int, **options: Any) -> None:
        """Tell the story; exit status 1 with one line if anything is not as promised. Leaves nothing behind."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        kandev = TemporaryDeployment()
        try:
            RestartDemo(Console(), kandev, work).tell()
        except DemoFailed as broken:
            raise CommandError(f"The demo failed. {broken}\n{kandev.log()}".rstrip()) from broken
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None
        finally:
            kandev.close()
