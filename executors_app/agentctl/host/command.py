"""``python -m executors_app.agentctl host ...``: the command line of the host daemon."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import ipaddress
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from executors_app.agentctl.command_line import address, give_up, report_the_first
from executors_app.agentctl.host.certificate import Certificate, find_or_make
from executors_app.agentctl.host.serving import Options, serve
from executors_app.agentctl.instance_lock import Held, InstanceLock

_SHORTEST_TOKEN: Final = 16
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def main(argv: Sequence[str]) -> int:
    """Run the daemon; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        options = options_of(arguments)
        lock = InstanceLock(options.root)
    except Held as held:
        return report_the_first(held, arguments.ready_file)
    except (OSError, ValueError, ImportError) as error:
        return give_up(error)
    try:
        asyncio.run(serve(options, lock))
    except (OSError, ValueError) as error:
        return give_up(error)
    finally:
        lock.release()
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Starts agentctls on this machine, and is the one door to all of them."
    parser = argparse.ArgumentParser(prog="agentctl host", description=about)
    add = parser.add_argument
    add("--listen", required=True, metavar="HOST:PORT", help="the one port that is opened")
    add("--token-file", type=Path, required=True, metavar="FILE", help="the token, or sha256: and its digest; 0600")
    add("--root", type=Path, required=True, metavar="DIR", help="worktrees, clones and journals")
    add("--repositories", action="append", default=[], metavar="DIR|URL", help="what may be worked on; again for more")
    add("--name", action="append", default=[], metavar="NAME", help="what the host is called by; again for more")
    add("--tls-cert", type=Path, metavar="FILE", help="certificate and its chain, PEM")
    add("--tls-key", type=Path, metavar="FILE", help="its key, PEM")
    add("--self-signed", action="store_true", help="make a certificate once; the log tells its fingerprint")
    add("--ready-file", type=Path, metavar="FILE", help="written once it listens")
    return parser


def options_of(arguments: argparse.Namespace) -> Options:
    """Check what was said; raises OSError, ValueError."""
    host, port = address(arguments.listen)
    root: Path = arguments.root.absolute()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    root.chmod(0o700)
    certificate = _certificate(arguments, root, host)
    if certificate is None and not _is_loopback(host):
        raise ValueError(
            f"--listen: {host} is not the loopback, so it takes --tls-cert and --tls-key, or --self-signed"
        )
    return Options(
        root=root,
        digest=_digest(arguments.token_file),
        host=host,
        port=port,
        names=arguments.name,
        repositories=arguments.repositories,
        certificate=certificate,
        ready_file=arguments.ready_file,
    )


def _certificate(arguments: argparse.Namespace, root: Path, host: str) -> Certificate | None:
    given = (arguments.tls_cert, arguments.tls_key)
    if arguments.self_signed and any(given):
        raise ValueError("--self-signed: a certificate was given, too")
    if arguments.self_signed:
        return find_or_make(root, [host, *(name.partition(":")[0] for name in arguments.name)])
    if not any(given):
        return None
    if not all(given):
        raise ValueError("--tls-cert and --tls-key belong together")
    return Certificate(*given)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _digest(path: Path) -> str:
    """Of the token; the file may hold nothing but the digest."""
    if path.stat().st_mode & _OTHERS:
        raise ValueError(f"--token-file: {path} can be read by others; chmod 600")
    said = path.read_text(encoding="utf-8").strip()
    if digest := _DIGEST.fullmatch(said):
        return digest[1]
    if len(said) < _SHORTEST_TOKEN:
        raise ValueError(f"--token-file: the token has fewer than {_SHORTEST_TOKEN} characters")
    return hashlib.sha256(said.encode()).hexdigest()
