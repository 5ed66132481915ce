"""The settings of an executor whose engine is on another machine, checked."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final

from executors_app.machine.process.spawning import AGENTCTL_UID
from executors_app.runtimes.containers.config import check_text, read_docker_config
from executors_app.runtimes.containers.connection import EngineAddress, file_problem
from executors_app.runtimes.remote_docker.site import RemoteSite

_TLS: Final = ("tls_ca", "tls_cert", "tls_key")
_SSH: Final = ("ssh_key", "ssh_known_hosts")
_KNOWN: Final = ("docker_host", *_TLS, *_SSH, "publish", "host", "user")
_DEFAULT_USER: Final = "1000:1000"
_NAME: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_USER: Final = re.compile(r"(\d{1,9}):(\d{1,9})")


def read_remote_config(config: Mapping[str, Any]) -> RemoteSite:
    """Return the checked settings; raises ValueError with one clear sentence."""
    docker = read_docker_config(config, "remote_docker", _KNOWN)
    values = {name: config.get(name, "") for name in _KNOWN}
    for name, value in values.items():
        check_text(name, value)
    address = EngineAddress(values["docker_host"], *(values[name] for name in (*_TLS, *_SSH)))
    _check_connection(address, values)
    publish = _address_of(values["publish"])
    host = values["host"] or publish
    if ipaddress.ip_address(publish).is_unspecified and not values["host"]:
        raise ValueError("publish is not a single address, so host must name the address of the ports.")
    return RemoteSite(address, docker, publish, _in_url(host), _user_of(values["user"]))


def _check_connection(address: EngineAddress, values: Mapping[str, str]) -> None:
    try:
        whole = bool(address.parts.hostname) and address.parts.port is not False
    except ValueError:
        whole = False
    if address.scheme not in ("tcp", "ssh") or not whole or not _NAME.fullmatch(address.parts.hostname or ""):
        raise ValueError("docker_host must be tcp://HOST:PORT or ssh://[USER@]HOST[:PORT][/SOCKET].")
    needed: tuple[str, ...] = ()
    unused: tuple[str, ...] = _TLS
    if address.scheme == "tcp":
        needed, unused = _TLS, _SSH
    if missing := [name for name in needed if not values[name]]:
        raise ValueError(f"tcp:// requires TLS with a client certificate: {', '.join(missing)} is missing.")
    if idle := [name for name in unused if values[name]]:
        raise ValueError(f"{', '.join(idle)} has no effect with {address.scheme}://. Remove it.")
    if address.scheme == "tcp" and (not address.parts.port or address.parts.path.strip("/") or address.parts.username):
        raise ValueError("docker_host must be tcp://HOST:PORT and nothing else.")
    for name in (*_TLS, *_SSH):
        if values[name] and not values[name].startswith("/"):
            raise ValueError(f"{name} must be the absolute path of a file on this machine.")
        if values[name] and (problem := file_problem(values[name], private=name.endswith("_key"))):
            raise ValueError(f"{name}: {problem}")


def _address_of(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise ValueError(
            "publish must be the address of the engine's machine to bind ports to, such as 10.0.0.5."
        ) from error


def _in_url(host: str) -> str:
    try:
        if ipaddress.ip_address(host).version == 6:
            return f"[{host}]"
        return host
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise ValueError(f"host must be an address or a name, not {host!r}.")
    return host


def _user_of(value: str) -> str:
    found = _USER.fullmatch(value or _DEFAULT_USER)
    if found is None or AGENTCTL_UID in (int(found[1]), int(found[2])) or int(found[1]) == 0:
        raise ValueError(
            f"user must be UID:GID, two numbers other than {AGENTCTL_UID}, the first one not 0 (root), not {value!r}."
        )
    return found[0]
