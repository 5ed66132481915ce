"""``manage.py hosts``: list the machines that Kandev runs on, and take them out of service."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.contrib.humanize.templatetags.humanize import naturaltime
from django.core.management.base import CommandError, CommandParser

from sessions_app.hosts import cordons, losses, lost_clusters, schedules, services
from sessions_app.hosts.cluster_nodes import ClusterNode, list_cluster_nodes
from sessions_app.hosts.remaining import MAX_NAMED, Remaining, remaining_on
from sessions_app.hosts.services import HostReport, ProcessReport
from sessions_app.kernel.rules.wording import plural
from sessions_app.kernel.services.errors import SessionsError
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, report_database_errors

EXIT_STILL_RUNNING: Final = 3
"""The time limit was reached while sessions still run on the host."""
EXIT_INTERRUPTED: Final = 130
LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what still runs."""


class Command(VisibleCommand):
    """List the hosts, or take one out of service and back."""

    help = (
        "List the machines that Kandev runs on, their processes with their last signs of life, and what is down. "
        "With a command, take a host out of service or back."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the commands and their options."""
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        commands = parser.add_subparsers(dest="action", metavar="COMMAND", title="commands")
        _add_command(commands, "cordon", "let a host take no new sessions; what runs there goes on")
        back = _add_command(commands, "uncordon", "put a host back into service, and resume what a drain has stopped")
        back.add_argument(
            "--after-shutdown",
            action="store_true",
            help="end only what drain --for-shutdown began: what people have decided stays",
        )
        lost = _add_command(commands, "lost", "declare a host lost that is gone for ever, and end its sessions there")
        lost.add_argument("--yes", action="store_true", default=argparse.SUPPRESS, help="confirm that it is gone")
        cluster = _add_command(
            commands, "lost-cluster", "declare the cluster of an executor lost, whose sessions cannot be reached"
        )
        cluster.add_argument("--yes", action="store_true", default=argparse.SUPPRESS, help="confirm that it is gone")
        parser.add_argument("--lost", metavar="NAME", default="", help="the same as the command lost")
        parser.add_argument("--yes", action="store_true", help="confirm --lost")
        drain = _add_command(commands, "drain", "cordon a host, and stop each of its sessions once it is at rest")
        drain.add_argument(
            "--for-shutdown",
            action="store_true",
            help="because its machine goes down; uncordon --after-shutdown then ends that, and nothing else",
        )
        drain.add_argument("--wait", action="store_true", help="wait until nothing runs there any more")
        drain.add_argument(
            "--timeout",
            type=float,
            default=0.0,
            metavar="S",
            help=f"wait at most S seconds, then name what still runs and exit with status {EXIT_STILL_RUNNING}",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do what the command says; without one, list. Exits with 2 and one line if that cannot be done."""
        with report_database_errors():
            try:
                if options["lost"]:
                    options |= {"action": "lost", "name": options["lost"]}
                _ACTIONS[options["action"]](self, options)
            except SessionsError as error:
                raise CommandError(error.message, returncode=EXIT_COULD_NOT_RUN) from error

    def list_all(self, options: Mapping[str, Any]) -> None:
        """List the hosts and what is down."""
        reports, nodes, down = services.list_hosts(), list_cluster_nodes(), services.describe_down()
        lag = round(schedules.schedule_lag().total_seconds(), 1)
        if options["json"]:
            document = {
                "hosts": [_document(report) for report in reports],
                "nodes": [_node_document(node) for node in nodes],
                "down": down,
                "schedule_lag_seconds": lag,
            }
            self.stdout.write(json.dumps(document, indent=2))
            return
        for report in reports:
            self._show(report)
        for node in nodes:
            agents = plural(node.sessions, "1 agent", "{} agents")
            self.stdout.write("  ".join(filter(None, (node.name, agents, "NODE OF A CLUSTER", node.executor))))
        for one in down:
            self.stdout.write(f"down: {one}")
        self.stdout.write(plural(len(reports), "1 host", "{} hosts"))

    def cordon(self, options: Mapping[str, Any]) -> None:
        """Cordon a host."""
        name = options["name"]
        cordons.cordon(name, None)
        self._say(options, f"{name} takes no new sessions. “manage.py hosts uncordon {name}” ends that.")

    def uncordon(self, options: Mapping[str, Any]) -> None:
        """Put a host back into service."""
        name = options["name"]
        if options["after_shutdown"]:
            cordons.return_after_shutdown(name)
        else:
            cordons.uncordon(name, None)
        if cordons.is_in_service(name):
            self._say(options, f"{name} is in service again.")
        else:
            self._say(options, f"{name} stays out of service, as somebody has decided. “manage.py hosts” shows how.")

    def drain(self, options: Mapping[str, Any]) -> None:
        """Drain a host, and wait for it if that is wanted."""
        name, hosts = options["name"], cordons.find_hosts(options["name"])
        if options["for_shutdown"]:
            cordons.drain_for_shutdown(name)
        else:
            cordons.drain(name, None)
        try:
            remaining = self._wait(options, lambda: remaining_on(hosts))
        except KeyboardInterrupt:
            raise CommandError(
                f"Stopped waiting. {name} drains on; “manage.py hosts uncordon {name}” ends that.",
                returncode=EXIT_INTERRUPTED,
            ) from None
        self._report(options, remaining)
        if remaining.count and options["wait"]:
            sys.exit(EXIT_STILL_RUNNING)

    def lose(self, options: Mapping[str, Any]) -> None:
        """Declare a host lost, and end its sessions there one by one."""
        name = options["name"]
        if not options["yes"]:
            raise CommandError(
                f"If {name} still runs somewhere, its agents go on without Kandev. Say --yes if it is gone for ever.",
                returncode=EXIT_COULD_NOT_RUN,
            )
        losses.declare_lost(name, None)
        total, ended, without_work = losses.count_lost(name), 0, 0
        while batch := losses.load_lost(name):
            for lost in batch:
                is_here = losses.is_work_here(lost)
                if losses.end_lost(lost, is_here=is_here):
                    ended += 1
                    without_work += not is_here
            if not options["json"]:
                self.stdout.write(f"Sessions ended: {ended} of {total}")
        self._report_loss(options, ended, without_work)

    def lose_cluster(self, options: Mapping[str, Any]) -> None:
        """Declare the clusters of an executor lost of which no session is reached."""
        name, ended = options["name"], 0
        if not options["yes"]:
            raise CommandError(
                f"If the cluster of {name} still runs somewhere, its agents go on without Kandev. Say --yes if it is "
                "gone for ever.",
                returncode=EXIT_COULD_NOT_RUN,
            )
        found = lost_clusters.list_unreached_clusters(name)
        if not found:
            raise CommandError(
                f"No session waits for a cluster of an executor called {name}.", returncode=EXIT_COULD_NOT_RUN
            )
        while found:
            marked = sum(lost_clusters.declare_lost(one.executor_id, one.namespace, None) for one in found)
            ended += marked
            found = lost_clusters.list_unreached_clusters(name) if marked else []
        said = plural(ended, "1 session counts", "{} sessions count")
        self._say(options, f"The cluster of {name} is lost. {said} as ended, and can start again within a minute.")

    def _report_loss(self, options: Mapping[str, Any], ended: int, without_work: int) -> None:
        name = options["name"]
        if options["json"]:
            document = {"name": name, "lost": True, "ended": ended, "work_not_here": without_work}
            self.stdout.write(json.dumps(document, indent=2))
            return
        self.stdout.write(f"{name} is lost. Its sessions can be started on other hosts, from their pages.")
        if without_work:
            self.stdout.write(
                plural(
                    without_work,
                    f"The work of 1 session was not found on this machine: it is on {name}.",
                    f"The work of {{}} sessions was not found on this machine: it is on {name}.",
                )
            )

    def _wait(self, options: Mapping[str, Any], look: Callable[[], Remaining]) -> Remaining:
        """Look until nothing runs any more or the time is over, and return what then runs; once without ``--wait``."""
        deadline = time.monotonic() + options["timeout"] if options["timeout"] else None
        remaining, shown = look(), None
        while options["wait"] and remaining.count:
            if deadline is not None and time.monotonic() >= deadline:
                break
            if not options["json"] and remaining.count != shown:
                shown = remaining.count
                self.stdout.write(plural(shown, "1 session still runs", "{} sessions still run"))
                self.stdout.flush()
            time.sleep(LOOK_EVERY)
            remaining = look()
        return remaining

    def _report(self, options: Mapping[str, Any], remaining: Remaining) -> None:
        name = options["name"]
        if options["json"]:
            self.stdout.write(json.dumps(_remaining_document(name, remaining), indent=2))
            return
        if not remaining.count:
            self.stdout.write(f"Nothing runs on {name} any more.")
            return
        self.stdout.write(plural(remaining.count, f"1 session runs on {name}:", f"{{}} sessions run on {name}:"))
        for one in remaining.sessions:
            self.stdout.write(f"  {one.session_id}  {one.task}: {one.reason}")
        if remaining.count > MAX_NAMED:
            self.stdout.write(f"  and {remaining.count - MAX_NAMED} more")
        if not remaining.is_attended:
            self.stdout.write(f"No supervisor runs on {name}, so nothing is stopped there. Start one.")

    def _say(self, options: Mapping[str, Any], sentence: str) -> None:
        if options["json"]:
            self.stdout.write(json.dumps({"name": options["name"], "message": sentence}, indent=2))
        else:
            self.stdout.write(sentence)

    def _show(self, report: HostReport) -> None:
        agents = plural(report.sessions, "1 agent", "{} agents")
        words = [report.host.name, agents]
        if report.is_unattended:
            words.append("NO SUPERVISOR")
        if report.service_state:
            words.append(report.service_state.upper())
        self.stdout.write("  ".join(words))
        for one in report.processes:
            at = one.row.ended_at or one.row.beat_at
            line = (one.row.get_role_display(), one.label.lower(), str(naturaltime(at)), one.row.release)
            self.stdout.write(f"  {'  '.join(line)}")


_ACTIONS: Final[Mapping[str | None, Callable[[Command, Mapping[str, Any]], None]]] = {
    None: Command.list_all,
    "cordon": Command.cordon,
    "uncordon": Command.uncordon,
    "drain": Command.drain,
    "lost": Command.lose,
    "lost-cluster": Command.lose_cluster,
}


def _add_command(commands: Any, name: str, summary: str) -> Any:
    command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    command.add_argument("name", metavar="NAME", help="the name of the host, as “manage.py hosts” lists it")
    # Not its default: the same option before the command must keep its value.
    command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    return command


def _remaining_document(name: str, remaining: Remaining) -> dict[str, Any]:
    sessions = [{"id": str(one.session_id), "task": one.task, "reason": one.reason} for one in remaining.sessions]
    return {
        "name": name,
        "drained": not remaining.count,
        "attended": remaining.is_attended,
        "running": remaining.count,
        "sessions": sessions,
    }


def _node_document(node: ClusterNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "executor": node.executor,
        "sessions": node.sessions,
        "drain_command": node.drain_command,
    }


def _document(report: HostReport) -> dict[str, Any]:
    return {
        "name": report.host.name,
        "sessions": report.sessions,
        "unattended": report.is_unattended,
        "service": report.service_state or "in service",
        "oldest_request_at": report.oldest_request_at and report.oldest_request_at.isoformat(),
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
