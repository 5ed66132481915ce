"""``manage.py run_workflow``: run a workflow file, and wait for its end."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandParser

from sessions_app.kernel.services.errors import SessionsError
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import EXIT_COULD_NOT_RUN, check_database
from sessions_app.workflows import run_command
from sessions_app.workflows.language.files import find_workflow_file
from sessions_app.workflows.loader.client import WorkflowInput
from sessions_app.workflows.models import WorkflowRun
from sessions_app.workflows.run_command import follow_run
from sessions_app.workflows.services.run_documents import run_document
from sessions_app.workflows.services.runs import start_run

EXIT_FAILED: Final = 1
EXIT_INVALID: Final = EXIT_COULD_NOT_RUN


class Command(VisibleCommand):
    """Run a workflow file, whether or not a server is running."""

    help = (
        "Run a workflow file and wait for its end. Exit status: 0 succeeded, 1 failed or cancelled, 2 could not be run."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the file, its inputs, and where and with whose rights it runs."""
        parser.usage = SUPPRESS  # otherwise an invalid argument prints the long usage
        parser.add_argument(
            "file", metavar="FILE", type=Path, help="a workflow file, or the name of one in the project"
        )
        parser.add_argument("--input", default="", metavar="TEXT", help="the text of the trigger")
        parser.add_argument(
            "--set",
            default=[],
            action="append",
            metavar="NAME=VALUE",
            help="a declared input; repeat it for each input",
        )
        parser.add_argument("--cwd", type=Path, metavar="DIR", help="the git repository to work in, on a new branch")
        parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
        parser.add_argument("--team", default="", metavar="NAME", help="the team; required if there are several")
        parser.add_argument(
            "--user",
            default="",
            metavar="NAME",
            help="the user whose rights the run has; required if several have write access",
        )
        parser.add_argument(
            "--agent", default="", metavar="PROFILE", help="the agent profile for steps without a runner"
        )
        parser.add_argument("--executor", default="", metavar="NAME", help="the executor to run on")

    def handle(self, *args: Any, **options: Any) -> None:
        """Check the file, start a run, and follow it."""
        options["file"] = find_workflow_file(options["file"], options["cwd"] or Path.cwd())
        read = run_command.read_workflow_file(options["file"])
        for problem in read.loaded.problems:
            self.stderr.write(str(problem))
        if read.loaded.workflow is None:
            sys.exit(EXIT_INVALID)
        inputs = {"text": options["input"], **run_command.parse_inputs(read.loaded.workflow, options["set"])}
        check_database()
        run = self._start(read, inputs, options)
        with run_command.make_reporter(quiet=options["json"]) as report:
            run = asyncio.run(follow_run(run, report))
        if options["json"]:
            self.stdout.write(json.dumps(run_document(run, whole=True), indent=2))
        else:
            self.stdout.write(run_command.describe_outcome(run))
        if run.state != "succeeded":
            sys.exit(EXIT_FAILED)

    def _start(self, read: WorkflowInput, inputs: dict[str, Any], options: dict[str, Any]) -> WorkflowRun:
        team = run_command.resolve_team(options["team"])
        try:
            run, _ = start_run(
                run_command.resolve_user(options["user"], team),
                team=team,
                text=read.text,
                files=read.files,
                inputs={**inputs, "type": "command"},
                repository=run_command.resolve_repository(team, options["cwd"], options["file"]),
                agent_profile=run_command.resolve_profile(options["agent"], team),
                executor=run_command.resolve_executor(options["executor"]),
                trigger="command",
            )
        except SessionsError as error:
            message = error.message
            if error.details.get("field") == "repository":
                message += " (--cwd DIR)"
            raise run_command.command_error(message) from error
        if run.note:
            self.stderr.write(run.note)
        return run
