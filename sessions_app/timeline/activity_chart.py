"""The activity chart of a session: when its agent was running, its turns, and its recovery checks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from sessions_app.kernel.rules.states import RunState
from sessions_app.kernel.rules.wording import plural
from sessions_app.models import Turn
from sessions_app.sessions.rules.situation_facts import Label

CHART_WIDTH: Final = 1000.0
"""Width of the chart, in units of the drawing."""
MIN_BAR_WIDTH: Final = 3.0
"""Minimum width of a turn, so that short turns stay visible."""
MAX_REST: Final = timedelta(minutes=5)
"""Longest rest between turns that is drawn to scale, unless ``REST_WIDTH_SHARE`` of all work is longer."""
REST_WIDTH_SHARE: Final = 0.08
_RUN_LABELS: Final[Mapping[str, Label]] = {
    RunState.COMPLETED: Label("completed", "good"),
    RunState.FAILED: Label("failed", "bad"),
    RunState.INTERRUPTED: Label("interrupted", "bad"),
    RunState.CANCELLED: Label("cancelled", "off"),
    RunState.WAITING: Label("waiting", "ask"),
    RunState.RUNNING: Label("in progress", "busy"),
}


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A bar in a lane, in units of the drawing."""

    tone: str
    x: str
    width: str
    title: str


@dataclass(frozen=True, slots=True)
class ChartMark:
    """A moment, drawn as a line across all lanes."""

    tone: str
    x: str
    title: str


@dataclass(frozen=True, slots=True)
class ActivityChart:
    """The contents of the chart: two lanes, marks, and a summary for screen readers.

    External waits are drawn in the lane of the turns: while one lasts, no turn is open.
    """

    since: datetime
    until: datetime
    agent: Sequence[ChartBar]
    turns: Sequence[ChartBar]
    marks: Sequence[ChartMark]
    breaks: Sequence[ChartBar]
    """Rests that are drawn shorter than they were, each with its duration."""
    summary: str


def draw_activity_chart(
    since: datetime,
    until: datetime,
    runs: Sequence[Turn],
    process: Sequence[tuple[datetime, bool]],
    sweeps: Sequence[tuple[datetime, Label]],
) -> ActivityChart:
    """Return the chart from ``since`` to ``until``; anything outside is cut off.

    ``runs`` are newest first. ``process`` holds each moment at which the agent process started (True) or ended (False),
    oldest first.
    """
    scale = _TimeScale(since, until, runs, [at for at, _ in process] + [at for at, _ in sweeps])
    turns = []
    for run in reversed(runs):
        label = _RUN_LABELS.get(run.state, Label(run.state, "bad"))
        what = "Turn"
        if not run.has_process:
            what = "Wait for an answer from outside:"
        title = f"{what} {label.text}, {run.started_at:%H:%M:%S}"
        turns.append(scale.bar(run.started_at, run.ended_at or until, label.tone, title))
    agent = [
        scale.bar(begin, end, "up", "The agent’s process was running")
        for begin, end in _process_intervals(process, since, until)
    ]
    marks = [ChartMark(word.tone, scale.x(at), word.text) for at, word in reversed(sweeps)]
    return ActivityChart(since, until, agent, turns, marks, scale.breaks, _chart_summary(runs, len(marks)))


class _TimeScale:
    """Converts times to units. Turns can be days apart, so long rests are shortened and listed in ``breaks``."""

    def __init__(self, since: datetime, until: datetime, runs: Sequence[Turn], moments: Iterable[datetime]):
        ends = [(run.started_at, run.ended_at or until) for run in runs]
        edges = {since, until, *moments, *(edge for span in ends for edge in span)}
        self.edges = sorted(min(max(edge, since), until) for edge in edges)
        spans = list(pairwise(self.edges))
        busy = [any(begin < right and left < end for begin, end in ends) for left, right in spans]
        real = [(right - left).total_seconds() for left, right in spans]
        work = sum(length for length, is_busy in zip(real, busy, strict=True) if is_busy)
        longest_rest = max(MAX_REST.total_seconds(), REST_WIDTH_SHARE * work)
        drawn = []
        for length, is_busy in zip(real, busy, strict=True):
            if not is_busy:
                length = min(length, longest_rest)  # noqa: PLW2901
            drawn.append(length)
        unit = CHART_WIDTH / max(sum(drawn), 0.001)
        self.units = [0.0]
        for length in drawn:
            self.units.append(self.units[-1] + length * unit)
        self.breaks = [
            ChartBar("break", f"{self.units[n]:.1f}", f"{drawn[n] * unit:.1f}", f"Idle for {_format_duration(real[n])}")
            for n in range(len(spans))
            if drawn[n] < real[n]
        ]

    def at(self, moment: datetime) -> float:
        """Return the distance of a moment from the left edge, limited to the chart."""
        if moment <= self.edges[0]:
            return 0.0
        if moment >= self.edges[-1]:
            return self.units[-1]
        n = bisect_right(self.edges, moment) - 1
        left, right = self.edges[n], self.edges[n + 1]
        part = (moment - left) / (right - left)
        return self.units[n] + part * (self.units[n + 1] - self.units[n])

    def x(self, moment: datetime) -> str:
        return f"{self.at(moment):.1f}"

    def bar(self, begin: datetime, end: datetime, tone: str, title: str) -> ChartBar:
        width = max(self.at(end) - self.at(begin), MIN_BAR_WIDTH)
        return ChartBar(tone, f"{min(self.at(begin), CHART_WIDTH - width):.1f}", f"{width:.1f}", title)


def _process_intervals(
    process: Sequence[tuple[datetime, bool]], since: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    """Return when the process was running. If the first event is an end, it was running from ``since`` on."""
    spans = []
    begin = None
    if process and not process[0][1]:
        begin = since
    for at, is_up in process:
        if is_up and begin is None:
            begin = at
        elif not is_up and begin is not None:
            spans.append((begin, at))
            begin = None
    if begin is not None:
        spans.append((begin, until))
    return spans


def _format_duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return plural(round(seconds), "1 second", "{} seconds")


def _chart_summary(runs: Sequence[Turn], checks: int) -> str:
    """Return the summary for screen readers, such as ``5 turns (1 interrupted), 1 wait, 2 recovery checks``."""
    turns = [run for run in runs if run.has_process]
    interrupted = sum(run.state == RunState.INTERRUPTED for run in turns)
    waits = len(runs) - len(turns)
    summary = plural(len(turns), "1 turn", "{} turns")
    if interrupted:
        summary += f" ({interrupted} interrupted)"
    if waits:
        summary += ", " + plural(waits, "1 wait", "{} waits")
    return summary + ", " + plural(checks, "1 recovery check", "{} recovery checks")
