"""The schema of MCP servers that agents are given: of profiles, repositories and teams alike.

A server is reached over HTTP (``url``, ``headers``) or is a program that the agent itself starts, in its own workspace
and with its own rights (``command``, ``args``, ``env``). A value ``secret:NAME``, or ``Bearer secret:NAME``, stands for
the variable NAME of the agent profile's environment, which is encrypted; it is replaced only as an agent starts.

Staff write profiles, and admins of teams the lists of teams and repositories. A server of such a list therefore gets a
secret only if the profile names its host for it (``AgentProfile.secret_hosts``): whoever chooses the address would
otherwise receive the secret. The agent makes the connection, so what the host does next, a redirect for example, is not
checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError

MAX_SERVERS: Final = 50
"""Servers of one list."""
MAX_LIST_CHARS: Final = 64 * 1024
"""Characters of one list as JSON: each of them is searched for secrets."""
MAX_PAIRS: Final = 50
"""Variables or headers of one server, and its arguments."""
VALUE_LIMIT: Final = 10_000
"""Characters of a value, an argument or an address."""
HTTP_TYPES: Final = ("http", "sse")
PROGRAM_TYPE: Final = "stdio"
ANY_PROGRAM: Final = "any program"
"""In place of a host: every program that a list of the team or repository names may get the secret."""
_DEFAULT_PORTS: Final[Mapping[str, int]] = {"https": 443, "http": 80}
_ROUTING_HEADERS: Final = frozenset({"host", "forwarded", "x-forwarded-host", "x-host", "x-original-host"})
"""Headers by which the server at an address may pass a request on to another host."""
_HOST: Final = re.compile(r"(http://)?([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(:[1-9][0-9]{0,4})?")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFERENCE: Final = re.compile(r"(?P<scheme>[A-Za-z]+ )?secret:(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_FIELDS_BY_KIND: Final = {
    "url": frozenset({"name", "type", "url", "headers"}),
    "command": frozenset({"name", "type", "command", "args", "env"}),
}


def check_mcp_servers(servers: Any) -> None:
    """Raise ValidationError for anything but a list of MCP servers with different names."""
    if not isinstance(servers, list) or not all(isinstance(server, dict) for server in servers):
        raise ValidationError("Expected a list of objects, each with a name.")
    if len(servers) > MAX_SERVERS:
        raise ValidationError(f"Expected at most {MAX_SERVERS} servers.")
    if len(json.dumps(servers)) > MAX_LIST_CHARS:
        raise ValidationError(f"Expected at most {MAX_LIST_CHARS:,} characters of JSON.")
    names: set[str] = set()
    for server in servers:
        name = server.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValidationError(
                "Expected a list of objects, each with a name of at most 64 letters, digits, spaces and . _ -."
            )
        if name in names:
            raise ValidationError(f"Two servers are called “{name}”.")
        names.add(name)
        _check_server(name, server)


def _check_server(name: str, server: Mapping[str, Any]) -> None:
    kind = "command"
    types: tuple[str, ...] = (PROGRAM_TYPE,)
    if "url" in server:
        kind, types = "url", HTTP_TYPES
    elif "command" not in server:
        raise ValidationError(f"“{name}” needs a url, or the command of a program.")
    if unknown := sorted(set(server) - _FIELDS_BY_KIND[kind]):
        raise ValidationError(f"“{name}” has unknown fields: {', '.join(map(repr, unknown))[:200]}.")
    if server.get("type", types[0]) not in types:
        raise ValidationError(f"The type of “{name}” must be {' or '.join(types)}.")
    if kind == "url":
        _check_address(name, server["url"])
        _check_pairs(name, server.get("headers", {}), "headers", _HEADER)
        return
    _check_texts(name, [server["command"]], "command")
    if not server["command"].strip():
        raise ValidationError(f"The command of “{name}” is empty.")
    _check_texts(name, server.get("args", []), "args")
    _check_pairs(name, server.get("env", {}), "env", _VARIABLE)


def _check_address(name: str, url: Any) -> None:
    _check_texts(name, [url], "url")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not url.isprintable() or " " in url:
        raise ValidationError(f"The url of “{name}” must be an http or https address.")
    if parts.username is not None or parts.password is not None:
        raise ValidationError(f"The url of “{name}” must contain no login. Put it into a header.")


def _check_texts(name: str, values: Any, field: str) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        expected = "text"
        if field == "args":
            expected = "a list of strings"
        raise ValidationError(f"{field} of “{name}” must be {expected}.")
    if len(values) > MAX_PAIRS or any(len(value) > VALUE_LIMIT or "\0" in value for value in values):
        raise ValidationError(f"{field} of “{name}” is too long, or contains U+0000.")


def _check_pairs(name: str, pairs: Any, field: str, allowed: re.Pattern[str]) -> None:
    found = list(_pairs(pairs))
    if len(found) != len(pairs if isinstance(pairs, dict | list) else [None]):
        raise ValidationError(f"{field} of “{name}” must be an object with string values.")
    _check_texts(name, [value for _, value in found], field)
    if bad := [key for key, value in found if not allowed.fullmatch(key) or "\n" in value or "\r" in value]:
        raise ValidationError(f"{field} of “{name}” has names or values that are not valid: {', '.join(bad)[:200]}.")


def _pairs(pairs: Any) -> Iterator[tuple[str, str]]:
    """Yield names and values of an object, or of a list as ACP has it; leaves out what has another shape."""
    if isinstance(pairs, dict):
        yield from ((name, value) for name, value in pairs.items() if isinstance(value, str))
    elif isinstance(pairs, list):
        for each in pairs:
            if isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("value"), str):
                yield each["name"], each["value"]


def is_program(server: Mapping[str, Any]) -> bool:
    """Return whether the agent starts a program, rather than reaching an address."""
    return "url" not in server


def named_values(server: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headers or variables of a server, as names and values."""
    return list(_pairs(server.get(_field_of_values(server), {})))


def _field_of_values(server: Mapping[str, Any]) -> str:
    """Return the field with the values that may refer to secrets."""
    if is_program(server):
        return "env"
    return "headers"


def referenced_secret(value: str) -> str:
    """Return the name of the variable that a value refers to; empty for a literal value."""
    found = _REFERENCE.fullmatch(value)
    if found:
        return found["name"]
    return ""


def resolve_secrets(server: Mapping[str, Any], env: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the server with the values that it refers to, and the names of variables that ``env`` lacks."""
    field = _field_of_values(server)
    missing = [name for _, value in named_values(server) if (name := referenced_secret(value)) and name not in env]
    resolved = {key: value for key, value in server.items() if key != "type" or "url" in server}
    if field in server:
        resolved[field] = {key: _resolve(value, env) for key, value in named_values(server)}
    return resolved, sorted(set(missing))


def _resolve(value: str, env: Mapping[str, str]) -> str:
    found = _REFERENCE.fullmatch(value)
    if found:
        return f"{found['scheme'] or ''}{env.get(found['name'], '')}"
    return value


def check_secret_hosts(destinations: Any) -> None:
    """Raise ValidationError unless each variable has a list of hosts, or ``ANY_PROGRAM``."""
    if not isinstance(destinations, dict):
        raise ValidationError('Expected an object, such as {"API_KEY": ["tools.example"]}.')
    for name, hosts in destinations.items():
        if not _VARIABLE.fullmatch(name):
            raise ValidationError(f"{name!r} is not a valid variable name.")
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise ValidationError(f"The hosts of {name} must be a list of strings.")
        if bad := [host for host in hosts if host != ANY_PROGRAM and not _HOST.fullmatch(host)]:
            raise ValidationError(
                f"{bad[0][:200]!r} is no host. Write tools.example or tools.example:8443 for https, "
                f"http://tools.example:8080 for an address without TLS, or {ANY_PROGRAM!r}."
            )


def withheld_secrets(server: Mapping[str, Any], destinations: Mapping[str, Any]) -> list[str]:
    """Return the variables that a server of a team or repository refers to and must not be given."""
    referenced = {name for _, value in named_values(server) if (name := referenced_secret(value))}
    given_to = _destinations(server)
    return sorted(name for name in referenced if given_to.isdisjoint(destinations.get(name, ())))


def _destinations(server: Mapping[str, Any]) -> set[str]:
    """Return the entries of a profile's hosts that mean this server; empty if its request may reach another host."""
    if is_program(server):
        return {ANY_PROGRAM}
    if any(name.lower() in _ROUTING_HEADERS for name, _ in named_values(server)):
        return set()
    parts = urlsplit(str(server["url"]))
    # Parsers disagree about the host of an address with one of these: the agent's might connect to another one.
    if "\\" in str(server["url"]) or "@" in parts.netloc or parts.scheme not in _DEFAULT_PORTS:
        return set()
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    written = {f"{host}:{port}"}
    if port == _DEFAULT_PORTS[parts.scheme]:
        written.add(host)
    if parts.scheme == "https":
        return written
    return {f"http://{each}" for each in written}


def merge_servers(*levels: tuple[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the servers of all levels with the level of each; of two with one name, that of the earlier level."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for level, servers in levels:
        for server in servers:
            found.setdefault(str(server.get("name", "")), (level, server))
    return list(found.values())
