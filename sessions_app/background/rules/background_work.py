"""What a report of background processes says, how long it holds, and the policies for such processes (pure).

An agent can write a report: it is bounded, and its texts are shown and never acted on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sessions_app.redaction.visible_text import make_visible

MAX_LISTED: Final = 20
MAX_COMMAND: Final = 200
MAX_COUNT: Final = 10**6
_MAX_NAMED: Final = 3
"""Processes that a question before a stop names."""
_NAMED_LENGTH: Final = 60
_MAX_CPU_SECONDS: Final = 10.0**9
_MAX_TIME: Final = 10.0**10
"""Seconds since 1970."""
CURRENT_FOR: Final = timedelta(minutes=3)
"""How long a report holds. agentctl repeats it every minute."""


class BackgroundPolicy(StrEnum):
    """What happens to background processes when their session has been idle for long enough to sleep."""

    KEEP = "keep"
    """They keep it awake."""
    END = "end"
    """It sleeps, which ends them, and their commands are recorded."""


class BackgroundPolicySource(StrEnum):
    """Where the policy for background processes is set; the first of them that sets one decides."""

    SESSION = "session"
    PROFILE = "profile"
    DEPLOYMENT = "deployment"


POLICY_TEXTS: Final[Mapping[BackgroundPolicy, str]] = {
    BackgroundPolicy.KEEP: "Keep the session awake",
    BackgroundPolicy.END: "End them and let the session sleep",
}
SOURCE_TEXTS: Final[Mapping[BackgroundPolicySource, str]] = {
    BackgroundPolicySource.SESSION: "Chosen for this session",
    BackgroundPolicySource.PROFILE: "Default of the agent profile",
    BackgroundPolicySource.DEPLOYMENT: "Default for this installation",
}


@dataclass(frozen=True, slots=True)
class EffectiveBackgroundPolicy:
    """The policy that applies to a session, and where it is set."""

    policy: BackgroundPolicy
    source: BackgroundPolicySource


def effective_background_policy(session: str, profile: str, deployment: str) -> EffectiveBackgroundPolicy:
    """Return the policy of a session: its own, else that of its agent profile, else that of the deployment.

    What a damaged row has instead of a policy counts as none.
    """
    choices = ((session, BackgroundPolicySource.SESSION), (profile, BackgroundPolicySource.PROFILE))
    for policy, source in choices:
        if policy in list(BackgroundPolicy):
            return EffectiveBackgroundPolicy(BackgroundPolicy(policy), source)
    return EffectiveBackgroundPolicy(BackgroundPolicy(deployment), BackgroundPolicySource.DEPLOYMENT)


@dataclass(frozen=True, slots=True)
class Report:
    """What agentctl has reported of the background processes of an agent."""

    processes: Sequence[Mapping[str, Any]]
    """At most ``MAX_LISTED``: ``{command, since, cpu_seconds}``, the last null if it is unknown."""
    count: int
    is_complete: bool
    """False: the agent has more processes than are read, so there may be others."""
    cpu_seconds: float | None
    """Of all of them; None: an agentctl of release 1.0 does not report it."""

    @property
    def identities(self) -> list[dict[str, str]]:
        """The processes without what changes all the time."""
        return [{"command": each["command"], "since": each["since"]} for each in self.processes]


def parse_report(line: Mapping[str, Any], now: datetime) -> Report:
    """Return what a journal line of kind ``agent.processes`` says, read at the time ``now``.

    A line from the future shows by how much the clock of agentctl's machine is at least ahead.
    """
    ahead = _seconds_ahead(line.get("ts"), now)
    reported = line.get("processes")
    if not isinstance(reported, list):
        reported = []
    parsed = (_parse_process(each, ahead) for each in reported[:MAX_LISTED])
    processes = [process for process in parsed if process is not None]
    count = line.get("count")
    if isinstance(count, bool) or not isinstance(count, int) or count < len(processes):
        count = len(processes)
    is_complete = line.get("complete") is not False
    if not is_complete:
        count = max(count, 1)  # nobody knows that there is none
    return Report(processes, min(count, MAX_COUNT), is_complete, _parse_cpu_seconds(line.get("cpu_seconds")))


def shown_command(command: object) -> str:
    """Return a reported command line as one line of visible characters, cut."""
    return " ".join(make_visible(str(command)[: 2 * MAX_COMMAND]).split())[:MAX_COMMAND]


def is_same_work(processes: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two lists have the same commands: a process of a loop that begins again and again is no news."""
    return Counter(each.get("command") for each in processes) == Counter(each.get("command") for each in others)


def is_current(reported_at: datetime | None, now: datetime, *, is_reached: bool, is_repeated: bool) -> bool:
    """Whether what was reported still holds.

    Args:
        reported_at: When it was reported; None: unknown.
        now: The present time.
        is_reached: False if the machine of the agent is known to be out of reach.
        is_repeated: Whether its agentctl repeats reports; one of release 1.0 reports changes only.
    """
    if not is_reached:
        return False
    if not is_repeated or reported_at is None:
        return True
    return now - reported_at <= CURRENT_FOR


def ends_sentence(commands: Sequence[str], count: int, *, is_current: bool = True) -> str:
    """Return which of an agent's ``count`` background processes a stop ends, naming the first; empty if there is none.

    ``commands`` are those that are listed. Unless ``is_current``, it is unknown which of them still run.
    """
    if not count:
        return ""
    processes = f"{count:,} process{'es' if count > 1 else ''}"
    text = f"Stopping ends {processes} that the agent has left running"
    if not is_current:
        text = f"Stopping ends what still runs of {processes} that the agent had left when it last reported"
    first = commands[:_MAX_NAMED]
    named = [f"{command[: _NAMED_LENGTH - 1]}…" if len(command) > _NAMED_LENGTH else command for command in first]
    if named:
        more = f"; {count - len(named):,} more" if count > len(named) else ""
        text = f"{text}: {'; '.join(named)}{more}"
    return f"{text}."


def cpu_time(seconds: float | None) -> str:
    """Return CPU time for people; empty if it is unknown."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _seconds_ahead(written_at: Any, now: datetime) -> float:
    """Return by how many seconds a time since 1970 is after ``now``; 0 for one that no clock shows."""
    if isinstance(written_at, bool) or not isinstance(written_at, int | float) or not 0 < written_at < _MAX_TIME:
        return 0.0
    return max(written_at - now.timestamp(), 0.0)


def _parse_process(reported: Any, ahead: float) -> dict[str, Any] | None:
    """Return a reported process with its command on one line of visible characters; None if it is none.

    ``ahead`` is by how many seconds the clock is ahead that has measured its start.
    """
    if not isinstance(reported, Mapping):
        return None
    command, since = reported.get("command"), reported.get("since")
    if not isinstance(command, str) or not isinstance(since, str):
        return None
    visible = shown_command(command)
    try:
        started_at = datetime.fromisoformat(since)
        if not visible or started_at.tzinfo is None:  # without a zone it would be read in that of the server
            return None
        since = (started_at.astimezone(UTC) - timedelta(seconds=round(ahead))).isoformat()
    except (ValueError, OverflowError):  # hostile times overflow in the conversion
        return None
    return {"command": visible, "since": since, "cpu_seconds": _parse_cpu_seconds(reported.get("cpu_seconds"))}


def _parse_cpu_seconds(reported: Any) -> float | None:
    if isinstance(reported, bool) or not isinstance(reported, int | float):
        return None
    if not 0 <= reported <= _MAX_CPU_SECONDS:  # also what is no number
        return None
    return round(float(reported), 1)
