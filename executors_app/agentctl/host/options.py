"""The command line of ``agentctl host``, and the checks of what it says."""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executors_app.agentctl.command_line import parse_address
from executors_app.agentctl.host.certificate import Certificate, load_or_create_certificate
from executors_app.agentctl.http.server import host_of

_MIN_TOKEN_LENGTH: Final = 16
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class HostOptions:
    """The checked command line of ``host``."""

    root: Path
    digest: str
    """SHA-256 of the token, in hexadecimal."""
    host: str
    port: int
    names: Sequence[str]
    repositories: Sequence[str]
    certificate: Certificate | None
    ready_file: Path | None


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    about = "Starts executions on this machine and serves all of them on one port."
    parser = argparse.ArgumentParser(prog="agentctl host", description=about)
    add = parser.add_argument
    add("--listen", required=True, metavar="HOST:PORT", help="address to listen on; no other port is opened")
    add(
        "--token-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="contains the token, or sha256: and its digest; mode 0600",
    )
    add("--root", type=Path, required=True, metavar="DIR", help="directory for worktrees, clones and journals")
    add(
        "--repositories",
        action="append",
        default=[],
        metavar="DIR|URL",
        help="allowed repositories: a folder or the beginning of a URL; repeatable",
    )
    add("--name", action="append", default=[], metavar="NAME", help="host name or address that clients use; repeatable")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate and its chain, in PEM format")
    add("--tls-key", type=Path, metavar="FILE", help="key of the certificate, in PEM format")
    add("--self-signed", action="store_true", help="create a certificate at the first start; its fingerprint is logged")
    add("--ready-file", type=Path, metavar="FILE", help="written once the host accepts connections")
    return parser


def parse_options(arguments: argparse.Namespace) -> HostOptions:
    """Check the command line; raises OSError, ValueError."""
    host, port = parse_address(arguments.listen)
    root: Path = arguments.root.absolute()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root.chmod(0o700)
    certificate = _certificate_of(arguments, root, host)
    if certificate is None and not _is_loopback(host):
        raise ValueError(
            f"--listen: {host} is not a loopback address, so TLS is required:"
            " add --tls-cert and --tls-key, or --self-signed"
        )
    return HostOptions(
        root=root,
        digest=_token_digest(arguments.token_file),
        host=host,
        port=port,
        names=arguments.name,
        repositories=arguments.repositories,
        certificate=certificate,
        ready_file=arguments.ready_file,
    )


def _certificate_of(arguments: argparse.Namespace, root: Path, host: str) -> Certificate | None:
    given = (arguments.tls_cert, arguments.tls_key)
    if arguments.self_signed and any(given):
        raise ValueError("--self-signed cannot be combined with --tls-cert and --tls-key")
    if arguments.self_signed:
        return load_or_create_certificate(root, [host, *map(host_of, arguments.name)])
    if not any(given):
        return None
    if not all(given):
        raise ValueError("--tls-cert and --tls-key must be given together")
    return Certificate(*given)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token_digest(path: Path) -> str:
    """Return the digest of the token; the file may contain only the digest."""
    if path.stat().st_mode & _GROUP_AND_OTHERS:
        raise ValueError(f"--token-file: {path} can be read by other users; run chmod 600 on it")
    content = path.read_text(encoding="utf-8").strip()
    if digest := _DIGEST.fullmatch(content):
        return digest[1]
    if len(content) < _MIN_TOKEN_LENGTH:
        raise ValueError(f"--token-file: the token needs at least {_MIN_TOKEN_LENGTH} characters")
    return hashlib.sha256(content.encode()).hexdigest()
