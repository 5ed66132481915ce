"""Requests as agentctl takes them: every field is checked, unknown ones are left alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import orjson
from aiohttp import web

from executors_app.agentctl.drivers import StartRequest, Strategy
from executors_app.agentctl.protocol import GENERATION_HEADER
from executors_app.agentctl.refusals import invalid

_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST_COMMITS: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LONGEST_START: Final = 600.0
_LONGEST_GRACE: Final = 60.0


async def read_object(request: web.Request) -> dict[str, Any]:
    """The JSON object of the body; an empty body is an empty object."""
    raw = await request.read()
    try:
        body = orjson.loads(raw) if raw else {}
    except ValueError as error:
        raise invalid("the body is not JSON") from error
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object")
    return body


def generation_of(request: web.Request) -> int:
    """The header that every command carries."""
    return number(request.headers.get(GENERATION_HEADER), GENERATION_HEADER)


def number(text: str | None, name: str) -> int:
    """A whole number that is not negative, from a header or a query."""
    if text is None or not _NUMBER.fullmatch(text):
        raise invalid(f"{name} must be a whole number", field=name)
    return int(text)


def span(query: Mapping[str, str], name: str, most: float) -> float:
    """Seconds from 0 to ``most`` in a query; none by default."""
    try:
        value = float(query.get(name, "0"))
    except ValueError:
        value = math.nan
    return seconds({name: value}, name, 0, most)


def identifier(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """1 to 200 printable ASCII characters without spaces."""
    value = body.get(name, default)
    if isinstance(value, str) and (_ID.fullmatch(value) or value == default):
        return value
    raise _wrong(name, "must be an id of 1 to 200 printable characters")


def text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Any text."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise _wrong(name, "must be a text")
    return value


def seconds(body: Mapping[str, Any], name: str, default: float, most: float = _LONGEST_GRACE) -> float:
    """A span from 0 to ``most``."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(name, "must be a number of seconds")
    if not 0 <= value <= most:
        raise _wrong(name, f"must be between 0 and {most:g} seconds")
    return float(value)


def flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """A yes or no."""
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise _wrong(name, "must be true or false")
    return value


def objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of JSON objects; none by default."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _wrong(name, "must be a list of objects")
    return value


def start_request(body: Mapping[str, Any], workspace: Path) -> StartRequest:
    """The body of ``POST /agent/start``."""
    strategy: Strategy = text(body, "strategy", "fresh")  # type: ignore[assignment]
    mode: Literal["ask", "auto_approve"] = text(body, "permission_mode", "ask")  # type: ignore[assignment]
    _one_of("strategy", strategy, get_args(Strategy))
    _one_of("permission_mode", mode, ("ask", "auto_approve"))
    request = StartRequest(
        launch_id=identifier(body, "launch_id"),
        argv=_argv(body),
        env=environment(body, "env"),
        cwd=_directory(body, workspace),
        strategy=strategy,
        driver=text(body, "driver", "acp"),
        resume_token=_optional(body, "resume_token"),
        model=_optional(body, "model"),
        mode=_optional(body, "mode"),
        additional_directories=[
            _checked_directory(path, "additional_directories") for path in texts(body, "additional_directories")
        ],
        mcp_servers=objects(body, "mcp_servers"),
        permission_mode=mode,
        gone_patterns=_patterns(body),
        prefer_load=flag(body, "prefer_load", default=True),
        last_message_uuid=_optional(body, "last_message_uuid"),
        fork=flag(body, "fork", default=False),
        timeout=seconds(body, "timeout", 60.0, _LONGEST_START),
    )
    if strategy == "native" and not request.resume_token:
        raise _wrong("resume_token", "is needed to resume natively")
    return request


def _argv(body: Mapping[str, Any]) -> list[str]:
    argv = texts(body, "argv")
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise _wrong("argv", "must name an executable and hold no U+0000")
    return argv


def environment(body: Mapping[str, Any], name: str) -> dict[str, str]:
    """Variables of a child, by their names; none by default."""
    env = body.get(name) or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) and "\0" not in value for value in env.values()):
        raise _wrong(name, "must map names to texts")
    if any(not variable or "=" in variable or "\0" in variable for variable in env):
        raise _wrong(name, "holds a name that cannot be one")
    return env


def _directory(body: Mapping[str, Any], workspace: Path) -> str:
    return _checked_directory(text(body, "cwd", "") or str(workspace), "cwd")


def _checked_directory(path: str, name: str) -> str:
    if "\0" in path or not Path(path).is_absolute() or not Path(path).is_dir():
        raise _wrong(name, "must be an absolute directory that is there")
    return path


def _patterns(body: Mapping[str, Any]) -> list[str]:
    patterns = texts(body, "gone_patterns")
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error as error:
        raise _wrong("gone_patterns", "must be regular expressions") from error
    return patterns


def texts(body: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts; none by default."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(name, "must be a list of texts")
    return value


def _optional(body: Mapping[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else text(body, name)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _wrong(name, f"must be one of {', '.join(allowed)}")


def _wrong(name: str, why: str) -> Exception:
    return invalid(f"{name} {why}", field=name)


def commits_of(body: Mapping[str, Any], name: str) -> list[str]:
    """A list of commit ids; raises Refused."""
    found = texts(body, name)
    if len(found) > _MOST_COMMITS or not all(map(_COMMIT.fullmatch, found)):
        raise invalid(f"{name} must be up to {_MOST_COMMITS} commit ids", field=name)
    return found
