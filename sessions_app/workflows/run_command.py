"""The parts of ``manage.py run_workflow``: read the file, resolve the arguments, follow the run, print progress."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.core.management.base import CommandError
from rich.live import Live
from rich.markup import escape
from rich.tree import Tree

from executors_app.models import Executor
from sessions_app.accounts.authorization import may_write
from sessions_app.agents.services.profiles import profiles_of
from sessions_app.catalogue.services.repositories import add_repository, only_or_default
from sessions_app.kernel.services.errors import Invalid
from sessions_app.management.console import VisibleConsole
from sessions_app.management.startup import EXIT_COULD_NOT_RUN
from sessions_app.models import Intent, Repository
from sessions_app.supervisor.leases import SupervisorLock
from sessions_app.supervisor.loop import SupervisorLoop
from sessions_app.workflows.language.graph import WorkflowGraph
from sessions_app.workflows.loader import client
from sessions_app.workflows.models import NodeRun, WorkflowRun
from sessions_app.workflows.services.runs import cancel_run

POLL_INTERVAL: Final = 0.2
"""Seconds between two reads of the run."""
STOP_TIMEOUT: Final = 30.0
ReportProgress = Callable[[WorkflowRun, list[NodeRun]], None]
STATE_MARKS: Final = {
    "running": "[blue]…[/blue]",
    "succeeded": "[green]✓[/green]",
    "failed": "[red]✗[/red]",
    "retried": "[yellow]↺[/yellow]",
    "skipped": "[dim]–[/dim]",
    "cancelled": "[dim]■[/dim]",
}
MAX_NODES_LISTED: Final = 60
"""Maximum number of node runs in the tree (the newest ones), because a terminal has few lines."""


async def follow_run(run: WorkflowRun, report: ReportProgress) -> WorkflowRun:
    """Report every change until the run is over, and return it. Ctrl-C cancels the run, and waits for its end.

    If a server uses this database, it drives the run. Otherwise, or once the server has stopped, a supervisor in this
    process does, which also stops the sessions of the run before it returns.
    """
    stop = asyncio.Event()
    supervisor = None
    with SupervisorLock("run") as lock, _cancel_on_signal(run):
        try:
            while True:
                if supervisor is None and lock.take():
                    supervisor = asyncio.create_task(SupervisorLoop().run(stop, first_sweep=False))
                if supervisor is not None and supervisor.done():
                    supervisor.result()  # raises the error that ended it
                row, nodes = await sync_to_async(_read_run)(run.id)
                report(row, nodes)
                if row.is_over:
                    if supervisor is not None:
                        await _wait_for_stops(row)
                    return row
                await asyncio.sleep(POLL_INTERVAL)
        finally:
            stop.set()
            if supervisor is not None:
                await supervisor


@contextmanager
def _cancel_on_signal(run: WorkflowRun) -> Iterator[None]:
    """Cancel the run on SIGINT or SIGTERM."""
    loop = asyncio.get_running_loop()
    cancellations: set[asyncio.Future[WorkflowRun]] = set()

    def cancel() -> None:
        starter = cast(User, run.started_by)  # the account that the command has just used
        cancellations.add(asyncio.ensure_future(sync_to_async(cancel_run)(starter, run)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _wait_for_stops(run: WorkflowRun) -> None:
    """Wait until the sessions of the run are stopped. What takes too long is left to the next supervisor."""
    deadline = time.monotonic() + STOP_TIMEOUT
    while time.monotonic() < deadline:
        if not await Intent.objects.filter(session__task_id=run.task_id, done_at=None).aexists():
            return
        await asyncio.sleep(POLL_INTERVAL)


def _read_run(run_id: uuid.UUID) -> tuple[WorkflowRun, list[NodeRun]]:
    row = WorkflowRun.objects.get(id=run_id)
    return row, list(row.node_runs.defer("inputs", "outputs", "request").order_by("position"))


@contextmanager
def make_reporter(*, quiet: bool) -> Iterator[ReportProgress]:
    """Provide the progress callback: a tree on a terminal, otherwise a line for each change; nothing if ``quiet``."""
    console = VisibleConsole(stderr=True)
    if quiet:
        yield lambda run, nodes: None
    elif not sys.stderr.isatty():
        yield _LineReporter(console).report
    else:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            yield lambda run, nodes: live.update(run_tree(run, nodes))


class _LineReporter:
    """Prints a line for each node run that has changed."""

    def __init__(self, console: VisibleConsole):
        self._console = console
        self._known: dict[str, str] = {}

    def report(self, run: WorkflowRun, nodes: list[NodeRun]) -> None:
        for node in nodes:
            description = describe_node(node)
            if self._known.get(node.path) != description:
                self._known[node.path] = description
                self._console.print(f"{escape(node.path)}: {description}", highlight=False, soft_wrap=True)


def run_tree(run: WorkflowRun, nodes: list[NodeRun]) -> Tree:
    """Return the node runs as a tree, each under its iteration."""
    tree = Tree(f"[bold]{escape(run.name)}[/bold] {run.state}")
    places = {"": tree}
    for node in nodes[-MAX_NODES_LISTED:]:
        parent = next((places[path] for path in _parent_paths(node.path) if path in places), tree)
        mark = STATE_MARKS.get(node.state, "")
        name = escape(node.path.rpartition("/")[2])
        places[node.path] = parent.add(f"{mark} {name} [dim]{describe_node(node)}[/dim]")
    return tree


def _parent_paths(path: str) -> Iterator[str]:
    """Yield the paths around a node run, nearest first: its iteration, its loop, and so on."""
    while path:
        before, _, step = path.rpartition("/")
        if "[" in step:
            yield path.rpartition("[")[0]
        path = before
        yield path


def describe_node(node: NodeRun) -> str:
    """Return the state of a node run in a few words."""
    if node.state == "running" and node.waiting_for == "user":
        return f"waiting for you in session {node.session_id}"
    if node.state == "running" and node.waiting_for:
        return f"waiting for its {node.waiting_for}"
    error = node.error.strip()
    if not error:
        return node.state
    return f"{node.state}: {escape(error.splitlines()[0])}"


def describe_outcome(run: WorkflowRun) -> str:
    """Return the last line: the result of the run, its ids, and its outputs."""
    outcome = f"{run.name}: {run.state}"
    if run.error:
        outcome += f": {run.error}"
    outcome += f" (run {run.id}, task {run.task_id})"
    for name, value in run.outputs.items():
        outcome += f"\n{name}: {value}"
    return outcome


def read_workflow_file(path: Path) -> client.WorkflowInput:
    """Read a workflow file, with the files that it names in its project."""
    try:
        return client.load_file_isolated(path)
    except client.LoadingUnavailable as error:
        raise command_error(f"{path}: {error}; try again") from error


def parse_inputs(graph: WorkflowGraph, given: Sequence[str]) -> dict[str, str]:
    """Return the inputs of ``NAME=VALUE`` arguments, each of which the workflow must declare."""
    inputs: dict[str, str] = {}
    known = [port.name for port in graph.inputs]
    for word in given:
        name, is_set, value = word.partition("=")
        if not is_set:
            raise command_error(f"--set needs NAME=VALUE, not “{word}”")
        if name not in known:
            declared = ", ".join(f"“{name}”" for name in known) or "none"
            raise command_error(f"the workflow declares no input “{name}”; it has {declared}")
        inputs[name] = value
    return inputs


def command_error(message: str) -> CommandError:
    """Return the error of a command that could not run and has changed nothing."""
    return CommandError(message, returncode=EXIT_COULD_NOT_RUN)


def find_by_name(rows: Any, name: str, what: str) -> Any:
    """Return the row with this name; None if ``name`` is empty."""
    if not name:
        return None
    found = rows.filter(name=name).first()
    if found is None:
        raise command_error(f"there is no {what} “{name}”")
    return found


def resolve_team(name: str) -> Group:
    """Return the named team, or the only one."""
    if name:
        named: Group = find_by_name(Group.objects.all(), name, "team")
        return named
    teams = list(Group.objects.order_by("name")[:2])
    if not teams:
        raise command_error("there is no team yet; create one first")
    if len(teams) > 1:
        raise command_error("there are several teams; choose one with --team")
    return teams[0]


def resolve_user(name: str, team: Group) -> Any:
    """Return the named user, or the only one with write access in the team."""
    if name:
        found = get_user_model().objects.filter(username=name, is_active=True).first()
        if found is None:
            raise command_error(f"there is no user “{name}”")
        return found
    members = get_user_model().objects.filter(groups=team, is_active=True)
    writers = [user for user in members.order_by("username") if may_write(user, team)]
    if len(writers) != 1:
        raise command_error(f"{len(writers)} users have write access in the team; choose one with --user")
    return writers[0]


def resolve_repository(team: Group, given: Path | None, file: Path) -> Repository | None:
    """Return the team's repository at ``--cwd``, and add it to the team if necessary.

    Without ``given`` it is the repository of the file, if the team has it, or else the only one of the team.
    """
    place = file.resolve().parent
    if given is not None:
        place = given.resolve()
    path = next((folder for folder in (place, *place.parents) if (folder / ".git").exists()), None)
    if path is None:
        if given is not None:
            raise command_error(f"{given} is not in a git repository")
        return only_or_default(Repository.objects.filter(team=team))
    found = Repository.objects.filter(team=team, path=str(path), removed_at=None).first()
    if found is not None or given is None:
        return found or only_or_default(Repository.objects.filter(team=team))
    try:
        return add_repository({"name": Path(path).name, "team": team, "path": path})
    except Invalid as error:
        raise command_error(f"{given}: {error.message}") from error


def resolve_profile(name: str, team: Group) -> Any:
    """Return the named agent profile, of the team or of all teams; None if ``name`` is empty."""
    return find_by_name(profiles_of(team.pk), name, "agent profile")


def resolve_executor(name: str) -> Any:
    """Return the named executor; None if ``name`` is empty."""
    return find_by_name(Executor.objects.all(), name, "executor")
