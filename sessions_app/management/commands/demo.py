"""``manage.py demo``: a demonstration of restarts in the terminal (``make demo``)."""

from __future__ import annotations

import signal
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management import CommandError

from sessions_app.demo.restart_demo import RestartDemo
from sessions_app.demo.temporary_deployment import DemoFailed, TemporaryDeployment
from sessions_app.management.console import VisibleConsole
from sessions_app.management.output import VisibleCommand


class Command(VisibleCommand):
    """Kill every process, and show that the agent's work survives."""

    help = "Demonstrate that agents survive restarts, with real processes in a temporary directory."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the duration of the first turn."""
        parser.add_argument(
            "--work", type=int, default=20, help="duration of the first turn in seconds (default: %(default)s)"
        )

    def handle(self, *args: Any, work: int, **options: Any) -> None:
        """Run the demonstration and clean up. Exits with status 1 if a check fails."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        kandev = TemporaryDeployment()
        try:
            RestartDemo(VisibleConsole(), kandev, work).run()
        except DemoFailed as broken:
            raise CommandError(f"The demo failed. {broken}\n{kandev.log()}".rstrip()) from broken
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None
        finally:
            kandev.close()
