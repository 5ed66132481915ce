"""Servers that branches are pushed to: git over http with a token, and over ssh with a key. They end with the test."""

from __future__ import annotations

import base64
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from executors_app.repositories.remote_address import RemoteAddress, parse_address
from executors_app.repositories.remote_keys import HostKey, read_host_keys
from executors_app.repositories.remotes import Credential
from tests.docker.remote_engine import ADDRESS
from tests.docker.ssh_server import SshServer

TOKEN: Final = "tok-3f9c1e77a2d84b5c9e10"
USERNAME: Final = "deploy"


def make_hosted(path: Path) -> Path:
    """Make an empty bare repository as a server has it."""
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(path)], check=True)
    subprocess.run(["git", "-C", str(path), "config", "http.receivepack", "true"], check=True)
    return path


def hosted_refs(path: Path) -> dict[str, str]:
    """Return the branches of a hosted repository."""
    listed = subprocess.run(
        ["git", "-C", str(path), "for-each-ref", "--format=%(refname) %(objectname)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(line.split(" ") for line in listed.stdout.splitlines())


def add_hook(path: Path, name: str, script: str) -> None:
    """Give a hosted repository a hook."""
    hook = path / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{script}\n")
    hook.chmod(0o755)


class GitHttpServer:
    """Serves the bare repositories in ``root`` by http on the loopback to whoever has the token."""

    def __init__(self, root: Path):
        self.root = root
        self.authorizations: list[str] = []
        """What was sent to log in, in order."""
        self.paths: list[str] = []
        self.answers_pushes = True
        """Whether it says what became of a push that it was sent."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, b"")

            def do_POST(self) -> None:
                server.answer(self, _body(self))

            def log_message(self, *_: object) -> None:
                """Keep the output of tests clean."""

        self._server = ThreadingHTTPServer((ADDRESS, 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="git over http", daemon=True).start()

    def address(self, name: str) -> RemoteAddress:
        """Return the address of a repository."""
        return parse_address(f"http://{ADDRESS}:{self.port}/{name}")

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Answer with what git's own backend says, to those who have the token."""
        self.paths.append(request.path)
        given = request.headers.get("Authorization", "")
        self.authorizations.append(given)
        wanted = base64.b64encode(f"{USERNAME}:{TOKEN}".encode()).decode()
        if given != f"Basic {wanted}":
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="git"')
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        path, _, query = request.path.partition("?")
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=False,
            env={
                "PATH": "/usr/bin:/bin",
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": request.command,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
                "HTTP_GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
                "REMOTE_USER": USERNAME,
                "CONTENT_LENGTH": str(len(body)),
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        if not self.answers_pushes and request.command == "POST" and path.endswith("/git-receive-pack"):
            content = b"0017\x01000eunpack ok\n00000000"  # without a word about the branch
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        request.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    parts = []
    while size := int(request.rfile.readline().strip() or b"0", 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)


class GitSshServer(SshServer):
    """Serves repositories by ssh to the holder of its key."""

    def address(self, path: Path) -> RemoteAddress:
        """Return the address of a repository."""
        return parse_address(self.url(str(path)))

    def host_keys(self) -> tuple[HostKey, ...]:
        """Return the keys by which it is recognised."""
        lines = self.known_hosts.read_text().splitlines()
        return tuple(read_host_keys(" ".join(line.split()[1:3]) for line in lines))

    def credential(self) -> Credential:
        """Return what logs in."""
        return Credential(private_key=self.key.read_text(), host_keys=self.host_keys())
