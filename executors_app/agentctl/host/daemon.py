"""Run the host daemon: its command line, its TLS certificate, and its server.

The instances that it has started keep running when it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import ipaddress
import logging
import os
import re
import signal
import ssl
import stat
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.daemon import listen_tcp, parse_address, report_lock_holder, report_start_failure
from executors_app.agentctl.host.api import HostAuthMiddleware, InstanceProxy, build_app
from executors_app.agentctl.host.instances import AllowedRepositories, InstanceManager
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.http.requests import host_of
from executors_app.agentctl.state_files import AlreadyRunning, InstanceLock, replace_file

_VALIDITY: Final = timedelta(days=3650)
_COMMON_NAME: Final = "kandev agentctl host"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The paths of a certificate and its key, in PEM format."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a TLS server context; raises ValueError if the files cannot be read or do not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ValueError(f"the certificate {self.certificate} with the key {self.key}: {error}") from error
        return context

    def fingerprint(self) -> str:
        """Return the SHA-256 of the first certificate, as in ``Executor.config``; raises OSError, ValueError."""
        text = self.certificate.read_text(encoding="ascii")
        first = text[text.index(ssl.PEM_HEADER) :].partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER
        return "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()


def load_or_create_certificate(root: Path, names: Collection[str]) -> Certificate:
    """Return the host's own certificate, created at its first start. Raises OSError."""
    made = Certificate(root / "tls.pem", root / "tls.key")
    if not (made.certificate.exists() and made.key.exists()):
        certificate, key = _self_signed(names)
        replace_file(made.key, key)
        replace_file(made.certificate, certificate)
    return made


def _self_signed(names: Collection[str]) -> tuple[bytes, bytes]:
    # Imported here: only a host that creates its certificate needs this package.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _COMMON_NAME)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.SubjectAlternativeName([_subject_alternative_name(name) for name in names]), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _subject_alternative_name(name: str) -> Any:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


logger = logging.getLogger(__name__)

_THREADS: Final = 64


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


async def serve_host(options: HostOptions, lock: InstanceLock) -> None:
    """Serve until SIGTERM; raises OSError, ValueError at the start."""
    instances = InstanceManager(options.root, AllowedRepositories(options.repositories, options.root))
    boot_id = uuid.uuid4().hex
    listener = listen_tcp(options.host, options.port)
    port = listener.getsockname()[1]
    context = options.certificate.context() if options.certificate else None
    # Clones take minutes: observing the instances must not wait behind them for a thread.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "host"))
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with InstanceProxy() as proxy:
        auth = HostAuthMiddleware(instances, options.digest, options.host, port, options.names)
        app = build_app(auth, instances, proxy, boot_id)
        runner = await serve_app(app, listener, ssl_context=context)
        _write_ready_file(options, lock, port, boot_id)
        await ended.wait()
        await proxy.close_sockets()
        await runner.cleanup()
    logger.info("stopped; the instances keep running")


def _write_ready_file(options: HostOptions, lock: InstanceLock, port: int, boot_id: str) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    ready: dict[str, Any] = {
        "url": f"{'https' if options.certificate else 'http'}://{host}:{port}",
        "pid": os.getpid(),
        "boot_id": boot_id,
        "started_at": datetime.now(UTC).isoformat(),
        "fingerprint": options.certificate.fingerprint() if options.certificate else None,
    }
    lock.publish_ready_info(ready, options.ready_file)
    logger.info("listening on %s, certificate %s", ready["url"], ready["fingerprint"])


_MIN_TOKEN_LENGTH: Final = 16
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_GROUP_AND_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def main(argv: Sequence[str]) -> int:
    """Run the daemon and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        options = parse_options(arguments)
        lock = InstanceLock(options.root)
    except AlreadyRunning as held:
        return report_lock_holder(held, arguments.ready_file)
    except (OSError, ValueError, ImportError) as error:
        return report_start_failure(error)
    try:
        asyncio.run(serve_host(options, lock))
    except (OSError, ValueError) as error:
        return report_start_failure(error)
    finally:
        lock.release()
    return 0


def _parser() -> argparse.ArgumentParser:
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
