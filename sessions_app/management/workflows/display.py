"""A run for people: a tree that follows it on a terminal, lines elsewhere, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.tree import Tree

from sessions_app.management.workflows.driving import Report
from sessions_app.models import NodeRun, WorkflowRun

MARKS: Final = {
    "running": "[blue]…[/blue]",
    "succeeded": "[green]✓[/green]",
    "failed": "[red]✗[/red]",
    "retried": "[yellow]↺[/yellow]",
    "skipped": "[dim]–[/dim]",
    "cancelled": "[dim]■[/dim]",
}
LISTED: Final = 60
"""Node runs of the tree, the newest: a terminal has so many lines."""


@contextmanager
def following(*, quiet: bool) -> Iterator[Report]:
    """What is called with every look: a tree on a terminal, else a line for each change; nothing if ``quiet``."""
    console = Console(stderr=True)
    if quiet:
        yield lambda run, nodes: None
    elif not sys.stderr.isatty():
        yield _Lines(console).report
    else:
        with Live(console=console, refresh_per_second=8, transient=True) as live:
            yield lambda run, nodes: live.update(tree(run, nodes))


class _Lines:
    """Prints what is new."""

    def __init__(self, console: Console):
        self._console = console
        self._known: dict[str, str] = {}

    def report(self, run: WorkflowRun, nodes: list[NodeRun]) -> None:
        for node in nodes:
            told = told_of(node)
            if self._known.get(node.path) != told:
                self._known[node.path] = told
                self._console.print(f"{escape(node.path)}: {told}", highlight=False, soft_wrap=True)


def tree(run: WorkflowRun, nodes: list[NodeRun]) -> Tree:
    """What ran, each within the iteration that it was in."""
    whole = Tree(f"[bold]{escape(run.name)}[/bold] {run.state}")
    places = {"": whole}
    for node in nodes[-LISTED:]:
        around = next((places[way] for way in _ways_up(node.path) if way in places), whole)
        label = f"{MARKS.get(node.state, '')} {escape(node.path.rpartition('/')[2])} [dim]{told_of(node)}[/dim]"
        places[node.path] = around.add(label)
    return whole


def _ways_up(path: str) -> Iterator[str]:
    """What a node lies in, the nearest first: its iteration, its loop, and so on."""
    while path:
        before, _, step = path.rpartition("/")
        if "[" in step:
            yield path.rpartition("[")[0]
        path = before
        yield path


def told_of(node: NodeRun) -> str:
    """How far it is, in a few words."""
    if node.state == "running" and node.waiting_for == "user":
        return f"waits for you in session {node.session_id}"
    if node.state == "running" and node.waiting_for:
        return f"waits for its {node.waiting_for}"
    error = f": {escape(node.error.strip().splitlines()[0])}" if node.error.strip() else ""
    return f"{node.state}{error}"


def outcome(run: WorkflowRun) -> str:
    """The last line: how it ended, where its sessions are, and what it gave."""
    outputs = "".join(f"\n{name}: {value}" for name, value in run.outputs.items())
    return f"{run.name}: {run.state}{f': {run.error}' if run.error else ''} (run {run.id}, task {run.task_id}){outputs}"
