"""The tables and the verdict at the end of a soak test."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from tests.soak.memory import longest_lived
from tests.soak.soak import Result


def report(result: Result, seconds: float, seed: int) -> Group:
    """Return tables of the activity, the invariants and the memory of the processes."""
    return Group(_activity_table(result, seconds, seed), _invariant_table(result), _memory_table(result))


def verdict(result: Result) -> str:
    """Return a line that names the violated invariants, or says that all held."""
    violations = [f"{name} ({len(found)})" for name, found in result.violations.items() if found]
    return (
        f"BROKEN: {', '.join(violations)}" if violations else f"GREEN: all of {len(result.violations)} invariants held"
    )


def _activity_table(result: Result, seconds: float, seed: int) -> Table:
    table = Table(title=f"{result.sessions} sessions, {seconds:.0f} s, seed {seed}", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("count", justify="right")
    rows = {
        "prompts accepted": len(result.accepted),
        "prompts refused": result.refused,
        "answers in logs": result.answers,
    }
    rows |= {f"deaths: {victim}": count for victim, count in sorted(result.kills.items())}
    for what, count in rows.items():
        table.add_row(what, f"{count:,}")
    return table


def _invariant_table(result: Result) -> Table:
    table = Table(title="Invariants", title_justify="left")
    table.add_column("invariant", no_wrap=True)
    table.add_column("violations", justify="right")
    table.add_column("first violation")
    for name, found in result.violations.items():
        shown = f"[red]{len(found)}[/]" if found else "[green]0[/]"
        table.add_row(name, shown, found[0] if found else "")
    return table


def _memory_table(result: Result) -> Table:
    table = Table(title="Private memory in MB of the longest-lived process of each kind", title_justify="left")
    table.add_column("process", no_wrap=True)
    for name in ("processes", "seconds", "halfway", "maximum", "last"):
        table.add_column(name, justify="right")
    for role, memory in sorted(longest_lived(result.processes).items()):
        count = sum(one.role == role for one in result.processes)
        sizes = (memory.first, max(memory.samples), memory.last)
        table.add_row(role, str(count), f"{len(memory.samples) / 2:.0f}", *(f"{size:.1f}" for size in sizes))
    return table
