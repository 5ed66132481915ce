"""The trigger node type, where a run begins: started by hand, by a cron expression in UTC, or when the team is idle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from heapq import merge
from itertools import groupby, islice, takewhile
from typing import Final, Literal

from pydantic import Field

from sessions_app.workflows.language.graph import GraphNode, WorkflowGraph
from sessions_app.workflows.language.schema import NodeData, make_port
from sessions_app.workflows.nodes import NodeContext, NodeFinished, NodeType, SettingsIssue

BUILT_IN_OUTPUTS: Final = frozenset({"timestamp", "type", "params"})
"""Outputs that Kandev itself fills. ``text`` is not one of them: users pass it, like declared inputs."""
_CRON_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_CRON_PART: Final = re.compile(r"(?:(?P<all>\*)|(?P<low>\d{1,2})(?:-(?P<high>\d{1,2}))?)(?:/(?P<step>\d{1,2}))?\Z")
_MONTHS: Final = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS: Final = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_NAMED_CRONS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_SEARCH_LIMIT: Final = timedelta(days=366 * 8 + 1)
MAX_COUNTED_SLOTS: Final = 1000
"""Missed slots that are counted; there may be more of them."""
LATE_AFTER: Final = timedelta(minutes=10)
"""A slot that is looked at later than this was missed: workers look every minute."""


class MissedOutcome(StrEnum):
    """What became of slots that were missed."""

    MADE_UP = "made_up"
    SKIPPED = "skipped"
    RUN_ACTIVE = "run_active"
    NOT_STARTED = "not_started"
    SCHEDULE_CHANGED = "schedule_changed"


class CronError(ValueError):
    """The expression is invalid; users see the message."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed cron expression. If ``any_day`` or ``any_weekday`` is set, only the other field restricts the day."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first due minute after a moment; None if there is none, as for 30 February."""
        at = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        while at - moment < _SEARCH_LIMIT:
            if at.month not in self.months or not self._is_day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return at
        return None

    def slots_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the due minutes after a moment, the first one first."""
        at = self.next_after(moment)
        while at is not None:
            yield at
            at = self.next_after(at)

    def _is_day(self, at: datetime) -> bool:
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return day and weekday
        return day or weekday


def parse_cron(text: str) -> Cron:
    """Parse a cron expression. Raises CronError, naming the field."""
    words = _NAMED_CRONS.get(text.strip().lower(), text).upper().split()
    if len(words) != len(_CRON_FIELDS):
        raise CronError(f"a cron expression has five fields, this one has {len(words)}")
    fields = [_parse_field(word, *field) for word, field in zip(words, _CRON_FIELDS, strict=True)]
    minutes, hours, days, months, weekdays = fields
    return Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        any_day=words[2].startswith("*"),
        any_weekday=words[4].startswith("*"),
    )


def _parse_field(word: str, name: str, lowest: int, highest: int) -> frozenset[int]:
    if name == "month":
        for number, month in enumerate(_MONTHS, 1):
            word = word.replace(month, str(number))
    elif name == "weekday":
        for number, weekday in enumerate(_WEEKDAYS):
            word = word.replace(weekday, str(number))
    found: set[int] = set()
    for part in word.split(","):
        match = _CRON_PART.match(part)
        if match is None:
            raise CronError(f"“{part}” is not a valid {name}")
        low, last = lowest, highest
        if not match["all"]:
            low = int(match["low"])
            if match["high"] or not match["step"]:
                last = int(match["high"] or low)
        step = int(match["step"] or 1)
        if not (lowest <= low <= last <= highest and step):
            raise CronError(f"“{part}” is not a {name} between {lowest} and {highest}")
        found.update(range(low, last + 1, step))
    return frozenset(found)


class TriggerSettings(NodeData):
    """Settings of a trigger."""

    trigger_type: Literal["manual", "cron", "idle"] = "manual"
    cron: str | None = Field(default=None, max_length=200)
    idle_minutes: int | None = Field(default=None, ge=1, le=10_080)


def check_settings(node: GraphNode) -> Iterable[SettingsIssue]:
    """Check the cron expression, and the time of an idle trigger."""
    settings = node.settings_of(TriggerSettings)
    if settings.trigger_type == "cron" and settings.cron is None:
        fix = "Add cron with five fields, as in cron: “*/5 * * * *” (every five minutes)."
        yield SettingsIssue(code="cron", message="the cron trigger has no cron", fix=fix)
    elif settings.trigger_type == "cron":
        try:
            parse_cron(settings.cron or "")
        except CronError as error:
            yield SettingsIssue(
                code="cron",
                message=str(error),
                fix="Write five fields, as in “*/5 * * * *” (every five minutes).",
                key=("cron",),
            )
    if settings.trigger_type == "idle" and settings.idle_minutes is None:
        yield SettingsIssue(code="idle", message="the idle trigger has no idleMinutes", fix="Add idleMinutes.")


def begin_node(context: NodeContext) -> NodeFinished:
    """Return the inputs of the run as outputs; a declared output without a value is None."""
    given = {"timestamp": "", "type": "manual", "text": "", "params": {}} | dict(context.run)
    return NodeFinished({port.name: given.get(port.name) for port in context.node.outputs} | given)


@dataclass(frozen=True, slots=True)
class WorkflowTriggers:
    """The cron and idle triggers of one workflow, which start it without a user."""

    crons: tuple[Cron, ...] = ()
    idle: timedelta | None = None
    """The shortest time of its idle triggers; None without one."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return when a cron trigger is due next; None if never."""
        times = [cron.next_after(moment) for cron in self.crons]
        return min((at for at in times if at is not None), default=None)

    def slots_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield when a cron trigger is due after a moment, each time once.

        Each trigger is searched only as far as its own next slot: one that is due every few years takes long to search.
        """
        for slot, _ in groupby(merge(*(cron.slots_after(moment) for cron in self.crons))):
            yield slot

    @classmethod
    def of(cls, crons: Sequence[Cron], idle_minutes: Sequence[int]) -> WorkflowTriggers:
        """Return the triggers with these expressions, and with the shortest of these times."""
        if not idle_minutes:
            return cls(tuple(crons))
        return cls(tuple(crons), timedelta(minutes=min(idle_minutes)))


@dataclass(frozen=True, slots=True)
class DueSlots:
    """The slots of cron triggers that are due at a moment, of which each starts a run if it is not late."""

    first: datetime
    last: datetime
    """The newest one, or the last one that was counted."""
    before_last: datetime
    """The one before the last; the first if there is only one."""
    count: int
    """At most ``MAX_COUNTED_SLOTS``."""
    now: datetime

    @property
    def is_last_missed(self) -> bool:
        """Whether even the newest slot is late: nothing looked for due slots when it came."""
        return self.count == MAX_COUNTED_SLOTS or self.now - self.last > LATE_AFTER

    @property
    def missed(self) -> int:
        """How many slots got no run of their own at their time."""
        if self.is_last_missed:
            return self.count
        return self.count - 1

    @property
    def end(self) -> datetime:
        """The newest slot, or the present if there may be more than were counted."""
        if self.count == MAX_COUNTED_SLOTS:
            return self.now
        return self.last

    @property
    def last_missed(self) -> datetime:
        """The end of the time in which slots were missed."""
        if self.is_last_missed:
            return self.end
        return self.before_last

    def to_start(self, *, catches_up: bool) -> datetime | None:
        """Return the slot whose run starts now: with ``catches_up`` one for all, else the newest unless it is late."""
        if catches_up:
            return self.first
        if self.is_last_missed:
            return None
        return self.last


def find_due_slots(triggers: WorkflowTriggers, first: datetime, now: datetime) -> DueSlots:
    """Return the slots from ``first``, which is due, until now."""
    before_last, last, count = first, first, 1
    due = takewhile(lambda slot: slot <= now, triggers.slots_after(first))
    for slot in islice(due, MAX_COUNTED_SLOTS - 1):
        before_last, last, count = last, slot, count + 1
    return DueSlots(first, last, before_last, count, now)


def trigger_settings_of(workflow: WorkflowGraph) -> list[TriggerSettings]:
    """Return the settings of all trigger nodes of a workflow."""
    return [node.settings for node in workflow.root.nodes.values() if isinstance(node.settings, TriggerSettings)]


def find_triggers(workflow: WorkflowGraph | None) -> WorkflowTriggers:
    """Return the triggers of a workflow; None as the workflow gives no triggers."""
    if workflow is None:
        return WorkflowTriggers()
    crons: list[Cron] = []
    idle_minutes: list[int] = []
    for settings in trigger_settings_of(workflow):
        if settings.trigger_type == "cron" and settings.cron:
            crons.append(parse_cron(settings.cron))
        elif settings.trigger_type == "idle" and settings.idle_minutes:
            idle_minutes.append(settings.idle_minutes)
    return WorkflowTriggers.of(crons, idle_minutes)


TYPES: Final = (
    NodeType(
        name="trigger",
        title="Trigger",
        settings=TriggerSettings,
        outputs=(
            make_port("timestamp", "string"),
            make_port("type", "string"),
            make_port("text", "string"),
            make_port("params", "json"),
        ),
        check=check_settings,
        begin=begin_node,
        is_open=True,
    ),
)
