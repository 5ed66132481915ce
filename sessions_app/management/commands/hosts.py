"""``manage.py hosts``: list the machines that Kandev runs on, their processes, and what is down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.contrib.humanize.templatetags.humanize import naturaltime
from django.core.management.base import CommandParser

from sessions_app.hosts import services
from sessions_app.hosts.services import HostReport, ProcessReport
from sessions_app.kernel.rules.wording import plural
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import report_database_errors


class Command(VisibleCommand):
    """List the hosts; changes nothing."""

    help = "List the machines that Kandev runs on, their processes with their last signs of life, and what is down."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def handle(self, *args: Any, **options: Any) -> None:
        """List. Exits with status 2 and one line if the database cannot be used."""
        with report_database_errors():
            reports, down = services.list_hosts(), services.describe_down()
        if options["json"]:
            document = {"hosts": [_document(report) for report in reports], "down": down}
            self.stdout.write(json.dumps(document, indent=2))
            return
        for report in reports:
            self._show(report)
        for one in down:
            self.stdout.write(f"down: {one}")
        self.stdout.write(plural(len(reports), "1 host", "{} hosts"))

    def _show(self, report: HostReport) -> None:
        agents = plural(report.sessions, "1 agent", "{} agents")
        self.stdout.write(f"{report.host.name}  {agents}{'  NO SUPERVISOR' if report.is_unattended else ''}")
        for one in report.processes:
            at = one.row.ended_at or one.row.beat_at
            line = (one.row.get_role_display(), one.label.lower(), naturaltime(at), one.row.release)
            self.stdout.write(f"  {'  '.join(line)}")


def _document(report: HostReport) -> dict[str, Any]:
    return {
        "name": report.host.name,
        "sessions": report.sessions,
        "unattended": report.is_unattended,
        "processes": _processes(report.processes),
    }


def _processes(processes: Sequence[ProcessReport]) -> list[dict[str, Any]]:
    return [
        {
            "role": one.row.role,
            "state": one.life.value,
            "release": one.row.release,
            "started_at": one.row.started_at.isoformat(),
            "beat_at": one.row.beat_at.isoformat(),
            "ended_at": one.row.ended_at and one.row.ended_at.isoformat(),
            "free_bytes": one.row.free_bytes,
            "load": one.row.load,
            "open_files": one.row.open_files,
            "max_open_files": one.row.max_open_files,
        }
        for one in processes
    ]
