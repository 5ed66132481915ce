"""What an executor of ``remote_docker`` may be told beside what every executor on Docker may: the way to its engine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executors_app.agentctl.two_users import AGENTCTL
from executors_app.containers.address import EngineAddress, problem_of
from executors_app.containers.config import DockerConfig, check_text, read_config

_TLS: Final = ("tls_ca", "tls_cert", "tls_key")
_SSH: Final = ("ssh_key", "ssh_known_hosts")
_KNOWN: Final = ("docker_host", *_TLS, *_SSH, "publish", "host", "user")
_USUAL_USER: Final = "1000:1000"
_NAME: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_USER: Final = re.compile(r"(\d{1,9}):(\d{1,9})")


@dataclass(frozen=True, slots=True)
class FarConfig:
    """Read and checked."""

    address: EngineAddress
    publish: str
    """Address of the engine's machine that the ports of its containers are bound to."""
    host: str
    """The same, as we reach it; as it stands in a URL."""
    user: str
    """``UID:GID`` that agents have there."""
    docker: DockerConfig


def read_far(config: Mapping[str, Any]) -> FarConfig:
    """The settings; ValueError with one clear sentence for anything that is none."""
    docker = read_config(config, "remote_docker", _KNOWN)
    told = {name: config.get(name, "") for name in _KNOWN}
    for name, value in told.items():
        check_text(name, value)
    address = EngineAddress(told["docker_host"], *(told[name] for name in (*_TLS, *_SSH)))
    _check_way(address, told)
    publish = _address_of(told["publish"])
    host = told["host"] or publish
    if ipaddress.ip_address(publish).is_unspecified and not told["host"]:
        raise ValueError("publish names no one address: host has to say where the ports are reached.")
    return FarConfig(address, publish, _in_url(host), _user_of(told["user"]), docker)


def _check_way(address: EngineAddress, told: Mapping[str, str]) -> None:
    try:
        whole = bool(address.parts.hostname) and address.parts.port is not False
    except ValueError:
        whole = False
    if address.scheme not in ("tcp", "ssh") or not whole or not _NAME.fullmatch(address.parts.hostname or ""):
        raise ValueError("docker_host wants tcp://HOST:PORT or ssh://[USER@]HOST[:PORT][/SOCKET].")
    wanted = _TLS if address.scheme == "tcp" else ()
    if missing := [name for name in wanted if not told[name]]:
        raise ValueError(f"tcp:// is spoken with TLS and a client certificate: {', '.join(missing)} is missing.")
    if idle := [name for name in (_SSH if address.scheme == "tcp" else _TLS) if told[name]]:
        raise ValueError(f"{', '.join(idle)} means nothing for {address.scheme}://.")
    if address.scheme == "tcp" and (not address.parts.port or address.parts.path.strip("/") or address.parts.username):
        raise ValueError("docker_host wants tcp://HOST:PORT, and nothing more.")
    for name in (*_TLS, *_SSH):
        if told[name] and not told[name].startswith("/"):
            raise ValueError(f"{name} wants the whole path of a file on this machine.")
        if told[name] and (problem := problem_of(told[name], private=name.endswith("_key"))):
            raise ValueError(f"{name}: {problem}")


def _address_of(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise ValueError(
            "publish wants the address of the engine's machine that ports are bound to, such as 10.0.0.5."
        ) from error


def _in_url(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise ValueError(f"host wants an address or a name, not {host!r}.")
    return host


def _user_of(value: str) -> str:
    found = _USER.fullmatch(value or _USUAL_USER)
    if found is None or AGENTCTL in (int(found[1]), int(found[2])):
        raise ValueError(f"user wants UID:GID, two numbers other than {AGENTCTL}, not {value!r}.")
    return found[0]
