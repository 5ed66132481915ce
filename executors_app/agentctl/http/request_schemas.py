"""Parsers for request fields: every known field is checked, unknown ones are ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args

import orjson
from aiohttp import web

from executors_app.agentctl.drivers import StartRequest, Strategy
from executors_app.agentctl.protocol import GENERATION_HEADER, validation_error

_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_COMMITS: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MAX_START_TIMEOUT: Final = 600.0
_MAX_GRACE: Final = 60.0


async def read_json_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object of the body; an empty body is an empty object."""
    raw = await request.read()
    try:
        body = orjson.loads(raw) if raw else {}
    except ValueError as error:
        raise validation_error("the body is not JSON") from error
    if not isinstance(body, dict):
        raise validation_error("the body is not a JSON object")
    return body


def read_generation(request: web.Request) -> int:
    """Return the generation in the header of a command."""
    return parse_number(request.headers.get(GENERATION_HEADER), GENERATION_HEADER)


def parse_number(text: str | None, name: str) -> int:
    """Parse a non-negative whole number from a header or a query."""
    if text is None or not _NUMBER.fullmatch(text):
        raise validation_error(f"{name} must be a whole number", field=name)
    return int(text)


def parse_wait(query: Mapping[str, str], name: str, most: float) -> float:
    """Parse seconds from 0 to ``most`` in a query; 0 by default."""
    try:
        value = float(query.get(name, "0"))
    except ValueError:
        value = math.nan
    return parse_seconds({name: value}, name, 0, most)


def parse_identifier(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return an id: 1 to 200 printable ASCII characters without spaces."""
    value = body.get(name, default)
    if isinstance(value, str) and (_ID.fullmatch(value) or value == default):
        return value
    raise _field_error(name, "must be an id of 1 to 200 printable characters")


def parse_text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a string."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise _field_error(name, "must be a string")
    return value


def parse_seconds(body: Mapping[str, Any], name: str, default: float, most: float = _MAX_GRACE) -> float:
    """Return seconds from 0 to ``most``."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _field_error(name, "must be a number of seconds")
    if not 0 <= value <= most:
        raise _field_error(name, f"must be between 0 and {most:g} seconds")
    return float(value)


def parse_flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a boolean."""
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise _field_error(name, "must be true or false")
    return value


def parse_objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects; empty by default."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise _field_error(name, "must be a list of objects")
    return value


def parse_start_request(body: Mapping[str, Any], workspace: Path) -> StartRequest:
    """Check the body of ``POST /agent/start``."""
    strategy: Strategy = parse_text(body, "strategy", "fresh")  # type: ignore[assignment]
    mode: Literal["ask", "auto_approve"] = parse_text(body, "permission_mode", "ask")  # type: ignore[assignment]
    _parse_choice("strategy", strategy, get_args(Strategy))
    _parse_choice("permission_mode", mode, ("ask", "auto_approve"))
    request = StartRequest(
        launch_id=parse_identifier(body, "launch_id"),
        argv=_parse_argv(body),
        env=parse_environment(body, "env"),
        cwd=_parse_directory(body, workspace),
        strategy=strategy,
        driver=parse_text(body, "driver", "acp"),
        resume_token=_parse_optional_text(body, "resume_token"),
        model=_parse_optional_text(body, "model"),
        mode=_parse_optional_text(body, "mode"),
        additional_directories=[
            _check_directory(path, "additional_directories") for path in parse_texts(body, "additional_directories")
        ],
        mcp_servers=parse_objects(body, "mcp_servers"),
        permission_mode=mode,
        gone_patterns=_parse_patterns(body),
        prefer_load=parse_flag(body, "prefer_load", default=True),
        last_message_uuid=_parse_optional_text(body, "last_message_uuid"),
        fork=parse_flag(body, "fork", default=False),
        timeout=parse_seconds(body, "timeout", 60.0, _MAX_START_TIMEOUT),
    )
    if strategy == "native" and not request.resume_token:
        raise _field_error("resume_token", "is required for the strategy native")
    return request


def _parse_argv(body: Mapping[str, Any]) -> list[str]:
    argv = parse_texts(body, "argv")
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise _field_error("argv", "must start with an executable and contain no U+0000")
    return argv


def parse_environment(body: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return environment variables by name; empty by default."""
    env = body.get(name) or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) and "\0" not in value for value in env.values()):
        raise _field_error(name, "must map names to strings")
    if any(not variable or "=" in variable or "\0" in variable for variable in env):
        raise _field_error(name, "contains an invalid name")
    return env


def _parse_directory(body: Mapping[str, Any], workspace: Path) -> str:
    return _check_directory(parse_text(body, "cwd", "") or str(workspace), "cwd")


def _check_directory(path: str, name: str) -> str:
    if "\0" in path or not Path(path).is_absolute() or not Path(path).is_dir():
        raise _field_error(name, "must be the absolute path of an existing directory")
    return path


def _parse_patterns(body: Mapping[str, Any]) -> list[str]:
    patterns = parse_texts(body, "gone_patterns")
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error as error:
        raise _field_error("gone_patterns", "must be regular expressions") from error
    return patterns


def parse_texts(body: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of strings; empty by default."""
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _field_error(name, "must be a list of strings")
    return value


def _parse_optional_text(body: Mapping[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else parse_text(body, name)


def _parse_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _field_error(name, f"must be one of {', '.join(allowed)}")


def _field_error(name: str, why: str) -> Exception:
    return validation_error(f"{name} {why}", field=name)


def parse_commits(body: Mapping[str, Any], name: str) -> list[str]:
    """Return a list of commit ids."""
    found = parse_texts(body, name)
    if len(found) > _MAX_COMMITS or not all(map(_COMMIT.fullmatch, found)):
        raise validation_error(f"{name} must be up to {_MAX_COMMITS} commit ids", field=name)
    return found
