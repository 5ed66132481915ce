"""The only reader of the control plane's environment, and the mail server that one of its URLs describes."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from executors_app import crash_points
from executors_app.agentctl.process import child_environment
from sessions_app.domain.recovery_facts import Policy

T = TypeVar("T")
log = logging.getLogger(__name__)

PREFIX: Final = "KANDEV_"
FOREIGN_PREFIXES: Final = ("KANDEV_SERVICE_", "KANDEV_PORT")
"""Set by cluster service discovery for a service called *kandev* (rule 43)."""

os.environ.setdefault("SPRITES_CLIENT_SIGNALS", "off")  # else sprites-py tells its vendor who calls: a person, an agent

MAIL_SCHEMES: Final = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
"""How a mail server is spoken to, and the port it then has if none is said."""

PROCESS_MARKERS: Final = child_environment.MARKERS
"""Put by us into the processes of an execution, from which somebody may call a command."""

RETIRED: Final = frozenset({"KANDEV_AGENT_USER"})
"""Settings of earlier versions: a deployment that still sets one starts all the same, with a warning."""

TEST_SWITCHES: Final = frozenset({"KANDEV_REQUIRE_SERVICES"})
"""Read by the test suite, before there are settings."""


class InvalidEnvironment(ImproperlyConfigured):
    """A ``KANDEV_*`` name or value that stops the start; the message is one line for a person."""


def _text(value: str) -> str:
    """A text."""
    return value


def _path(value: str) -> Path:
    """A path."""
    return Path(value).expanduser().absolute()


def _optional_path(value: str) -> Path | None:
    """A path."""
    return _path(value) if value else None


def _paths(value: str) -> tuple[Path, ...]:
    """Paths, separated by `:`."""
    return tuple(_path(part) for part in value.split(os.pathsep) if part)


def _names(value: str) -> tuple[str, ...]:
    """Names, separated by commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


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


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(filter(None, allowed))}")
        return value

    parse.__doc__ = f"One of {', '.join(f'`{word}`' for word in filter(None, allowed))}."
    return parse


def _crash_point(value: str) -> str:
    """Crash points with commas between them, each alone, with `:N` for its N-th time, or with `:each` session."""
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
        raise ValueError(f"must be addresses or networks, as 10.0.0.5 or 10.0.0.0/24: {error}") from None


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
    """The deployment's choices; field ``lease_ttl`` is ``KANDEV_LEASE_TTL``. Durations are in seconds.

    The line under each is its meaning in ``docs/settings.md``; a parser's docstring says what may be written.
    """

    data_dir: Path = _entry(_path, "~/.kandev")
    """The database, the secret key, the worktrees and the state of every agentctl; private to its owner (0700)."""
    database_url: str = _entry(_text, secret=True)
    """``sqlite:///FILE`` or ``postgres://USER:PASSWORD@HOST/NAME``; unset: SQLite in the data directory."""
    redis_url: str = _entry(_redis, secret=True)
    """``redis://…`` or ``rediss://…``: wake-ups between hosts, and one count of costly requests for all webs."""
    secret_key: str = _entry(_text, secret=True)
    """Signs cookies and encrypts secrets at rest; unset: drawn into the data directory at the first start."""
    secret_key_fallbacks: tuple[str, ...] = _entry(_names, secret=True)
    """Earlier secret keys, so that what they have signed and encrypted can still be read."""
    metrics_token: str = _entry(_text, secret=True)
    """The bearer token of the metrics."""
    allowed_hosts: tuple[str, ...] = _entry(_names)
    """Names under which others may call; only with a secret key too is another than the loopback served."""
    trusted_origins: tuple[str, ...] = _entry(_names)
    """Origins of the pages, as ``https://kandev.example``; if all are https, cookies are for https alone."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = _entry(_networks, "127.0.0.0/8,::1")
    """Proxies whose ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are believed; behind https origins alone."""
    recovery_policy: str = _entry(_one_of(*map(str, Policy)), str(Policy.AUTO))
    """Which sessions get their agent back by themselves after a restart, where the session does not say."""
    sweep_concurrency: int = _entry(_count, "50")
    """How many executions a sweep looks at at once."""
    sweep_timeout: float = _entry(_positive_seconds, "5")
    """How long a sweep waits for the answer of one execution."""
    reconcile_interval: float = _entry(_positive_seconds, "30")
    """Pause between two sweeps of the supervisor."""
    max_restarts: int = _entry(_count, "5")
    """Starts without success after which only a user starts a session again."""
    restart_delay: float = _entry(_positive_seconds, "5")
    """Pause after the first start that failed, less up to half of it at random; doubled with each, 60 times at most."""
    idle_sleep: float = _entry(_seconds, "3600")
    """An idle agent that can take its conversation up again is put to sleep after so long; 0: never."""
    start_concurrency: int = _entry(_count, "8")
    """How many starts one supervisor carries out at once."""
    max_starts_per_pass: int = _entry(_count, "20")
    """How many starts a supervisor orders by itself at a time; the others wait until some of these have ended."""
    boot_grace: float = _entry(_seconds, "60")
    """The first start of a session that a supervisor makes by itself so soon after its own is no try; 0: all are."""
    start_timeout: float = _entry(_positive_seconds, "300")
    """How long one start may take: workspace, agentctl and agent."""
    continue_: str = _entry(_one_of("", "on", "off"))
    """Whether interrupted work is continued by itself; unsaid: where the policy is auto (rule 16)."""
    turn_retries: int = _entry(_count_or_none, "5")
    """How often a turn is tried again that a passing error of the model's provider has failed; 0: never."""
    stall_notice: float = _entry(_seconds, "300")
    """After so long without a word a turn is shown as silent, and nothing is ended; 0: never."""
    permission_timeout: float = _entry(_seconds, "0")
    """How long an agent waits for the answer to a permission before it is told that nobody answered; 0: for ever."""
    journal_retention: float = _entry(_seconds, "604800")
    """Journals of closed and deleted sessions are removed after so long; 0 never."""
    recovery_retention: float = _entry(_seconds, "2592000")
    """Recovery refs of deleted sessions, and of closed ones those that the branch makes needless; 0 never."""
    history_retention: float = _entry(_seconds, "2592000")
    """What is over and only tells of the past (sweeps, keys, notices, tasks) is removed after so long; 0 never."""
    event_retention: float = _entry(_seconds, "0")
    """The log of closed sessions leaves the database after so long, where the portable record has it all; 0 never."""
    repository_roots: tuple[Path, ...] = _entry(_paths)
    """Folders in which repositories may lie; unset: anywhere."""
    lease_ttl: float = _entry(_positive_seconds, "15")
    """How long a lease lives without renewal; waits for database locks end well within it."""
    docker_host: str = _entry(_text)
    """Address of this machine's Docker engine, such as ``unix:///run/docker-agents.sock``; unset: its usual socket."""
    agentctl_image: str = _entry(_text, "kandev-agentctl")
    """The container image that agentctl and the agents run in."""
    sprites_token: str = _entry(_text, secret=True)
    """The token of the organisation whose Fly.io Sprites the runtime ``sprites`` makes and uses."""
    sprites_url: str = _entry(_text, "https://api.sprites.dev")
    """Where the Sprites API is."""
    site_url: str = _entry(_text)
    """Where people reach the pages, for links in e-mails and webhooks; unset: the first trusted origin."""
    email_url: str = _entry(_mail_server, secret=True)
    """Sends e-mail: ``smtp://USER:PASSWORD@HOST:587`` (STARTTLS), ``smtps://``, ``smtp+plain://``; unset: none."""
    email_from: str = _entry(_text, "kandev@localhost")
    """Whom e-mails are from."""
    webhook_allowed_hosts: tuple[str, ...] = _entry(_hosts)
    """Hosts, as ``host`` or ``host:port``, that webhooks may call in a private network or over plain http."""
    log_format: str = _entry(_one_of("console", "json"), "console")
    """Lines for people, or one JSON object a line."""
    crash_at: str = _entry(_crash_point)
    """Drills only: the point at which a process ends itself (`executors_app.crash_points`)."""
    crash_dir: Path | None = _entry(_optional_path)
    """Drills only: where a process that ended itself leaves a file, so that the next one goes on."""


def variable_name(entry: Field[Any]) -> str:
    """The environment's name of a field: ``KANDEV_LEASE_TTL`` for ``lease_ttl``."""
    return PREFIX + entry.name.rstrip("_").upper()


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read and check every ``KANDEV_*`` name; BadEnvironment names the first that is wrong."""
    source = os.environ if environ is None else environ
    entries = fields(Environment)
    _refuse_unknown(source, entries)
    for name in sorted(RETIRED & source.keys()):
        log.warning("kandev: %s has no effect any more; remove it from the environment", name)
    read = Environment(**{entry.name: _read(entry, source) for entry in entries})
    if bool(read.crash_at) != bool(read.crash_dir):
        raise InvalidEnvironment("KANDEV_CRASH_AT and KANDEV_CRASH_DIR are for drills, and go together")
    return read


def _refuse_unknown(environ: Mapping[str, str], entries: Iterable[Field[Any]]) -> None:
    known = {variable_name(entry) for entry in entries} | PROCESS_MARKERS | TEST_SWITCHES | RETIRED
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
        shown = name if entry.metadata["secret"] else f"{name}={value}"
        raise InvalidEnvironment(f"{shown}: {error}") from error


def _read_secret(name: str, value: str, file: Path) -> str:
    if value:
        raise InvalidEnvironment(f"both {name} and {name}_FILE are set: keep one")
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidEnvironment(f"{name}_FILE cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class MailServerSettings:
    """What Django wants to know of it."""

    host: str = "localhost"
    port: int = 25
    user: str = ""
    password: str = field(default="", repr=False)
    starttls: bool = False
    tls: bool = False


def parse_mail_url(url: str) -> MailServerSettings:
    """The server of a checked ``KANDEV_EMAIL_URL``; without one what Django has by itself."""
    if not url:
        return MailServerSettings()
    parts = urlsplit(url)
    return MailServerSettings(
        host=parts.hostname or "",
        port=parts.port or MAIL_SCHEMES[parts.scheme],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starttls=parts.scheme == "smtp",
        tls=parts.scheme == "smtps",
    )
