"""Read and check the control plane's environment variables, and describe them in ``docs/settings.md``."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from executors_app.machine import crash_points
from executors_app.machine.process import spawning
from sessions_app.recovery.rules.resumability import Policy

T = TypeVar("T")
log = logging.getLogger(__name__)

PREFIX: Final = "KANDEV_"
FOREIGN_PREFIXES: Final = ("KANDEV_SERVICE_", "KANDEV_PORT")
"""Prefixes of variables that Kubernetes sets for a service called *kandev*. They are ignored."""

os.environ.setdefault(
    "SPRITES_CLIENT_SIGNALS", "off"
)  # otherwise sprites-py reports to its vendor whether a person or an agent uses it

MAIL_SCHEMES: Final = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
"""Schemes of mail server URLs, with their default ports."""

PROCESS_MARKERS: Final = spawning.MARKERS
"""Variables that we set in the processes of an execution; a command may be run from there."""

CLIENT_VARIABLES: Final = frozenset({"KANDEV_TOKEN"})
"""Variables of programs that call Kandev, by the names in our guides. A shell that has them runs our commands, too."""

TEST_SWITCHES: Final = frozenset({"KANDEV_REQUIRE_SERVICES"})
"""Variables of the test suite, which reads them before there are settings."""


class InvalidEnvironment(ImproperlyConfigured):
    """An invalid ``KANDEV_*`` name or value, which stops the start; the message is one line."""


def _text(value: str) -> str:
    """Text."""
    return value


def _path(value: str) -> Path:
    """A path."""
    return Path(value).expanduser().absolute()


def _optional_path(value: str) -> Path | None:
    """A path."""
    if value:
        return _path(value)
    return None


def _paths(value: str) -> tuple[Path, ...]:
    """Paths, separated by `:`."""
    return tuple(_path(part) for part in value.split(os.pathsep) if part)


def _names(value: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _host_names(value: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    return tuple(map(_in_brackets, _names(value)))


def _in_brackets(name: str) -> str:
    """Return a host name as browsers send it: an IPv6 address, which a Pod knows as plain digits, in brackets."""
    try:
        address = ip_address(name)
    except ValueError:
        return name
    if address.version == 6:
        return f"[{name}]"
    return name


def _seconds(value: str) -> float:
    """Seconds."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < float("inf"):
        raise ValueError("must be a number of seconds, 0 or more")
    return seconds


def _positive_seconds(value: str) -> float:
    """Seconds, more than 0."""
    seconds = _seconds(value)
    if seconds == 0:
        raise ValueError("must be more than 0 seconds")
    return seconds


def _count(value: str) -> int:
    """A whole number, 1 or more."""
    if not (value.isascii() and value.isdigit() and int(value)):
        raise ValueError("must be a whole number, 1 or more")
    return int(value)


def _count_or_none(value: str) -> int:
    """A whole number."""
    if not (value.isascii() and value.isdigit()):
        raise ValueError("must be a whole number, 0 or more")
    return int(value)


def _bytes_or_none(value: str) -> int:
    """A number of bytes."""
    return _count_or_none(value)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(filter(None, allowed))}")
        return value

    parse.__doc__ = f"One of {', '.join(f'`{word}`' for word in filter(None, allowed))}."
    return parse


def _crash_point(value: str) -> str:
    """Crash points, separated by commas; `:N` means the N-th pass, `:each` each session."""
    if value:
        try:
            crash_points.check(value)
        except ValueError as error:
            raise ValueError(f"must be crash points: {error}") from None
    return value


def _hosts(value: str) -> tuple[str, ...]:
    """Hosts, separated by commas."""
    return tuple(name.lower() for name in _names(value))


def _mail_server(value: str) -> str:
    """A URL."""
    parts = urlsplit(value)
    if value and (parts.scheme not in MAIL_SCHEMES or not parts.hostname or parts.port == 0):
        raise ValueError(f"must begin with {', '.join(f'{scheme}://' for scheme in MAIL_SCHEMES)} and name a host")
    return value


def _networks(value: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Addresses or networks, separated by commas."""
    try:
        return tuple(ip_network(part) for part in _names(value))
    except ValueError as error:
        raise ValueError(f"must be addresses or networks, such as 10.0.0.5 or 10.0.0.0/24: {error}") from None


def _redis(value: str) -> str:
    """A URL."""
    parts = urlsplit(value)
    place = {"redis": parts.hostname, "rediss": parts.hostname, "unix": parts.path}
    if value and not place.get(parts.scheme):
        raise ValueError("must look like redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS")
    return value


def _entry(parse: Callable[[str], T], default: str = "", *, secret: bool = False) -> T:
    metadata = {"parse": parse, "default": default, "secret": secret}
    made: T = field(metadata=metadata, repr=not secret)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The settings of a deployment; field ``lease_ttl`` is ``KANDEV_LEASE_TTL``. Durations are in seconds.

    The docstring under a field is its meaning in ``docs/settings.md``; a parser's docstring describes valid values.
    """

    data_dir: Path = _entry(_path, "~/.kandev")
    """Directory of the database, secret key, worktrees and agentctl state; private to its owner (0700)."""
    database_url: str = _entry(_text, secret=True)
    """``sqlite:///FILE`` or ``postgres://USER:PASSWORD@HOST/NAME``; unset: SQLite in the data directory."""
    host_name: str = _entry(_text)
    """Name of this machine on the *System* page. Unset: its own, which is random in most containers."""
    redis_url: str = _entry(_redis, secret=True)
    """``redis://…`` or ``rediss://…``: carries wake-ups between hosts and rate limits shared by all web processes."""
    secret_key: str = _entry(_text, secret=True)
    """Signs cookies and encrypts secrets at rest. Unset: generated in the data directory at the first start."""
    secret_key_fallbacks: tuple[str, ...] = _entry(_names, secret=True)
    """Earlier secret keys, which still verify and decrypt existing data."""
    metrics_token: str = _entry(_text, secret=True)
    """Bearer token for `/metrics`."""
    allowed_hosts: tuple[str, ...] = _entry(_host_names)
    """Host names and addresses that requests may use. Serving beyond the loopback requires this and a secret key."""
    trusted_origins: tuple[str, ...] = _entry(_names)
    """Origins of the pages, such as ``https://kandev.example``. If all use https, cookies require https."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = _entry(_networks, "127.0.0.0/8,::1")
    """Proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted; used only if all origins use https."""
    recovery_policy: str = _entry(_one_of(*map(str, Policy)), str(Policy.AUTO))
    """Which sessions resume automatically after a restart, unless the session or its team sets a policy."""
    sweep_concurrency: int = _entry(_count, "50")
    """Number of executions that a sweep observes concurrently."""
    sweep_timeout: float = _entry(_positive_seconds, "5")
    """Time that a sweep waits for the answer of one execution."""
    reconcile_interval: float = _entry(_positive_seconds, "30")
    """Interval between two sweeps of the supervisor."""
    max_restarts: int = _entry(_count, "5")
    """Failed starts after which only a user can start the session again."""
    restart_delay: float = _entry(_positive_seconds, "5")
    """Delay after the first failed start, minus a random part of up to half. Doubles each time, to at most 60 times."""
    idle_sleep: float = _entry(_seconds, "3600")
    """Time after which an idle agent that can resume is put to sleep; 0: never."""
    background_processes: str = _entry(_one_of("keep", "end"), "keep")
    """What happens to processes that an agent has left running when its session would sleep: they keep it awake, or it
    sleeps, which ends them. An agent profile may have another policy for its sessions, and a session one of its own."""
    start_concurrency: int = _entry(_count, "8")
    """Number of starts that one supervisor carries out concurrently. One that takes more than 20 s does not count."""
    max_starts_per_pass: int = _entry(_count, "20")
    """Number of automatic starts that a supervisor requests at a time; others wait until some have finished."""
    boot_grace: float = _entry(_seconds, "60")
    """Time after a supervisor's own start in which a session's first automatic start does not count; 0: all count."""
    start_timeout: float = _entry(_positive_seconds, "300")
    """Time limit of a start: workspace, agentctl and agent. A login in it has two thirds of this time in addition."""
    continue_: str = _entry(_one_of("", "on", "off"))
    """Whether interrupted work is continued automatically. Unset: only with the policy *auto*."""
    turn_retries: int = _entry(_count_or_none, "5")
    """How often a turn is retried after a transient error of the model's provider; 0: never."""
    continue_at_reset: int = _entry(_count_or_none, "0")
    """After how many usage limits in a row work that a limit has cut off is continued automatically; 0: never."""
    missed_schedules: str = _entry(_one_of("once", "skip"), "once")
    """What happens after scheduled runs of a workflow were missed: one run makes up for all (once), or none (skip)."""
    stall_notice: float = _entry(_seconds, "300")
    """Time without output after which a turn is shown as silent; nothing is stopped. 0: never."""
    agent_turn_quiet: float = _entry(_seconds, "5")
    """Time without output after which work that an agent began without a prompt counts as ended."""
    agent_turn_limit: float = _entry(_seconds, "1800")
    """How long such work holds back prompts, and how long it may be silent with a tool call without a result."""
    turn_output_limit: int = _entry(_bytes_or_none, "104857600")
    """Output of one turn that is stored; more is left out, until a user allows it. 0: no limit."""
    session_output_limit: int = _entry(_bytes_or_none, "2147483648")
    """Output of one session that is stored, as for a turn. 0: no limit."""
    permission_timeout: float = _entry(_seconds, "0")
    """Time after which an unanswered permission request is cancelled; 0: never."""
    journal_retention: float = _entry(_seconds, "604800")
    """Time after which journals of closed and deleted sessions are deleted; 0: never."""
    recovery_retention: float = _entry(_seconds, "2592000")
    """Time after which recovery refs of deleted sessions, and redundant ones of closed ones, are deleted; 0: never."""
    history_retention: float = _entry(_seconds, "2592000")
    """Time after which history is deleted: past sweeps, keys, notices and tasks of the worker; 0: never."""
    event_retention: float = _entry(_seconds, "0")
    """Time after which logs of closed sessions leave the database, if the portable record is complete; 0: never."""
    worktree_retention: float = _entry(_seconds, "0")
    """Time after which worktrees of closed sessions on this machine move to the trash, if nothing is lost; 0: never."""
    worktree_trash: float = _entry(_seconds, "1209600")
    """Time for which a worktree stays in the trash before its files are deleted; 0: for ever."""
    backup_max_age: float = _entry(_seconds, "129600")
    """Age from which the newest recorded backup of a host counts as too old, and staff are notified; 0: never."""
    worktree_caches: tuple[str, ...] = _entry(
        _names, "node_modules,.venv,__pycache__,.pytest_cache,.mypy_cache,.ruff_cache"
    )
    """Names of ignored directories that do not keep a worktree: what is in them can be made again."""
    repository_roots: tuple[Path, ...] = _entry(_paths)
    """Directories that may contain repositories. Unset: any directory."""
    lease_ttl: float = _entry(_positive_seconds, "15")
    """Lifetime of a lease without renewal; waits for database locks end well within it."""
    docker_host: str = _entry(_text)
    """Address of the local Docker engine, such as ``unix:///run/docker-agents.sock``. Unset: the default socket."""
    agentctl_image: str = _entry(_text, "kandev-agentctl")
    """Container image for agentctl and the agents."""
    sprites_token: str = _entry(_text, secret=True)
    """Token of the Fly.io organisation in which the runtime ``sprites`` creates Sprites."""
    sprites_url: str = _entry(_text, "https://api.sprites.dev")
    """Address of the Sprites API."""
    site_url: str = _entry(_text)
    """Address of the pages for links in e-mails and webhooks. Unset: the first trusted origin."""
    email_url: str = _entry(_mail_server, secret=True)
    """Mail server: ``smtp://USER:PASSWORD@HOST:587`` (STARTTLS), ``smtps://`` or ``smtp+plain://``; unset: none."""
    email_from: str = _entry(_text, "kandev@localhost")
    """Sender of e-mails."""
    webhook_allowed_hosts: tuple[str, ...] = _entry(_hosts)
    """Hosts (``host`` or ``host:port``) that webhooks may call in a private network or over plain http."""
    log_format: str = _entry(_one_of("console", "json"), "console")
    """Format of log lines: for people, or one JSON object per line."""
    beat_path: Path | None = _entry(_optional_path)
    """File that a supervisor or a worker touches as long as it does not hang, one for each process. Unset: none."""
    crash_at: str = _entry(_crash_point)
    """For tests only: the crash point at which a process kills itself (`executors_app.machine.crash_points`)."""
    crash_dir: Path | None = _entry(_optional_path)
    """For tests only: directory where a killed process leaves a marker, so that the next one passes the crash point."""


def variable_name(entry: Field[Any]) -> str:
    """Return the variable of a field: ``KANDEV_LEASE_TTL`` for ``lease_ttl``."""
    return PREFIX + entry.name.rstrip("_").upper()


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read and check every ``KANDEV_*`` variable. Raises InvalidEnvironment for the first that is invalid."""
    if environ is None:
        environ = os.environ
    entries = fields(Environment)
    _refuse_unknown(environ, entries)
    environment = Environment(**{entry.name: _read(entry, environ) for entry in entries})
    if bool(environment.crash_at) != bool(environment.crash_dir):
        raise InvalidEnvironment("KANDEV_CRASH_AT and KANDEV_CRASH_DIR are for tests, and must be set together")
    return environment


def _refuse_unknown(environ: Mapping[str, str], entries: Iterable[Field[Any]]) -> None:
    known = {variable_name(entry) for entry in entries} | PROCESS_MARKERS | CLIENT_VARIABLES | TEST_SWITCHES
    known |= {f"{variable_name(entry)}_FILE" for entry in entries if entry.metadata["secret"]}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and not name.startswith(FOREIGN_PREFIXES):
            nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0)[0]
            raise InvalidEnvironment(f"unknown setting {name}: did you mean {nearest}?")


def _read(entry: Field[Any], environ: Mapping[str, str]) -> Any:
    name = variable_name(entry)
    value = environ.get(name, "")
    if entry.metadata["secret"] and f"{name}_FILE" in environ:
        value = _read_secret(name, value, Path(environ[f"{name}_FILE"]))
    try:
        return entry.metadata["parse"](value or entry.metadata["default"])
    except (ValueError, RuntimeError) as error:
        if entry.metadata["secret"]:
            raise InvalidEnvironment(f"{name}: {error}") from error
        raise InvalidEnvironment(f"{name}={value}: {error}") from error


def _read_secret(name: str, value: str, file: Path) -> str:
    if value:
        raise InvalidEnvironment(f"both {name} and {name}_FILE are set: remove one of them")
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidEnvironment(f"{name}_FILE cannot be read: {error}") from error
