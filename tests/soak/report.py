"""The tables at the end."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from tests.soak.memory import longest
from tests.soak.soak import Result


def report(result: Result, seconds: float, seed: int) -> Group:
    """What was done, what held, and what everybody's memory did."""
    return Group(_done(result, seconds, seed), _held(result), _memory(result))


def verdict(result: Result) -> str:
    """One line: whether everything held, and else what did not."""
    broken = [f"{name} ({len(found)})" for name, found in result.broken.items() if found]
    return f"BROKEN: {', '.join(broken)}" if broken else f"GREEN: all of {len(result.broken)} invariants held"


def _done(result: Result, seconds: float, seed: int) -> Table:
    table = Table(title=f"{result.sessions} sessions, {seconds:.0f} s, seed {seed}", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("count", justify="right")
    rows = {"prompts given": len(result.given), "prompts refused": result.refused, "answers in logs": result.answers}
    rows |= {f"deaths: {victim}": count for victim, count in sorted(result.kills.items())}
    for what, count in rows.items():
        table.add_row(what, f"{count:,}")
    return table


def _held(result: Result) -> Table:
    table = Table(title="What must hold", title_justify="left")
    table.add_column("invariant", no_wrap=True)
    table.add_column("broken", justify="right")
    table.add_column("the first of them")
    for name, found in result.broken.items():
        shown = f"[red]{len(found)}[/]" if found else "[green]0[/]"
        table.add_row(name, shown, found[0] if found else "")
    return table


def _memory(result: Result) -> Table:
    table = Table(title="Memory of their own, MB, of the longest life of each", title_justify="left")
    table.add_column("process", no_wrap=True)
    for name in ("lives", "seconds", "at half", "most", "last"):
        table.add_column(name, justify="right")
    for role, session_steps in sorted(longest(result.lives).items()):
        lives = sum(one.role == role for one in result.lives)
        sizes = (session_steps.first, max(session_steps.samples), session_steps.last)
        table.add_row(role, str(lives), f"{len(session_steps.samples) / 2:.0f}", *(f"{size:.1f}" for size in sizes))
    return table
