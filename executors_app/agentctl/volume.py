"""``python -m executors_app.agentctl.volume``: a session's volume while no agentctl runs on it.

``prepare`` makes the directories of an execution on a fresh or used volume, waits for the seed, and ends: agentctl,
which starts after it, finds token and seed in place. ``read`` sends what an agentctl left, or packs the session's work.
Both serve only requests with the bearer token of a launch.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from aiohttp import web

from executors_app.agentctl.command_line import EXIT_START_FAILED, log_to_stderr, parse_address, report_start_failure
from executors_app.agentctl.daemon import listen_tcp, read_token
from executors_app.agentctl.http.connections import serve_app
from executors_app.agentctl.http.server import AuthMiddleware, json_response, parse_commits, read_json_object
from executors_app.agentctl.http.workspace_api import send_work
from executors_app.machine.git import workspace_root
from executors_app.wire.errors import ExecutorError
from executors_app.wire.protocol import ApiError, Code

_CHUNK: Final = 1 << 20
_SEED: Final = "seed"
_LEFT: Final = ("journal", "token.json")
"""What of an agentctl's state is sent: never its token."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns 0, or 2 if it could not start or nothing came within the deadline."""
    log_to_stderr()
    options = _parser().parse_args(argv)
    try:
        token = read_token(options.token_file)
        if options.command == "prepare":
            place = _Place.of(options)
            place.make(token)
            return asyncio.run(_serve(options, token, _receive_routes(place), place.is_complete))
        return asyncio.run(_serve(options, token, _read_routes(options), asyncio.Event()))
    except (OSError, ValueError) as error:
        return report_start_failure(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentctl-volume", description="Prepares or reads a session's volume.")
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="make the directories of an execution and wait for its seed")
    prepare.add_argument("--volume", type=Path, required=True, metavar="DIR")
    prepare.add_argument("--execution-id", required=True, metavar="ID")
    prepare.add_argument("--run-as", required=True, metavar="UID:GID", help="owner of the files")
    read = commands.add_parser("read", help="send what an agentctl left")
    read.add_argument("--state-dir", type=Path, metavar="DIR")
    read.add_argument("--root", type=Path, default=workspace_root.WORKSPACE_ROOT, metavar="DIR")
    read.add_argument("--owner", default="", metavar="ID", help="session that owns the work tree")
    read.add_argument("--branch", default="", metavar="NAME")
    for command in (prepare, read):
        command.add_argument("--token-file", type=Path, required=True, metavar="FILE")
        command.add_argument("--listen", required=True, metavar="HOST:PORT")
        command.add_argument("--deadline", type=float, required=True, metavar="SECONDS")
    return parser


async def _serve(options: argparse.Namespace, token: str, routes: Sequence[web.RouteDef], done: asyncio.Event) -> int:
    """Serve until ``done``; returns 2 on TERM and after the deadline."""
    host, port = parse_address(options.listen)
    auth = AuthMiddleware(token, host, port, lambda: None)
    app = web.Application(middlewares=auth.middlewares())
    app.add_routes([web.get("/health", _health), *routes])
    runner = await serve_app(app, listen_tcp(host, port))
    stopped = asyncio.Event()
    # As the first process of a container we would not end on TERM by default.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    waits = [asyncio.create_task(event.wait()) for event in (done, stopped)]
    try:
        await asyncio.wait(waits, timeout=options.deadline, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await runner.cleanup()
    if done.is_set():
        return 0
    return EXIT_START_FAILED  # so that agentctl, which comes next, does not start


async def _health(request: web.Request) -> web.Response:
    return json_response({"status": "waiting"})


class _Place:
    """The directories of one execution on its volume: ``workspace``, ``home`` and ``state/<execution>``."""

    def __init__(self, volume: Path, execution_id: str, uid: int, gid: int):
        self._volume, self._uid, self._gid = volume, uid, gid
        self._state = volume / "state" / execution_id
        self._seeds = 0
        self.is_complete = asyncio.Event()

    @classmethod
    def of(cls, options: argparse.Namespace) -> _Place:
        """Read the command line; raises ValueError for an execution that is no name, or an owner that is no user."""
        execution_id = options.execution_id
        if not execution_id or Path(execution_id).name != execution_id or execution_id.startswith("."):
            raise ValueError("--execution-id is not an id")
        uid, _, gid = options.run_as.partition(":")
        return cls(options.volume, execution_id, int(uid), int(gid))

    def make(self, token: str) -> None:
        """Make the directories and write the token. Only their own names are touched, never what an agent wrote."""
        for directory in (self._volume / "workspace", self._volume / "home"):
            self._own(directory, 0o755)
        self._state.parent.mkdir(mode=0o700, exist_ok=True)
        self._own(self._state, 0o700)
        # The seed of an earlier start must not be taken for that of this one.
        (self._state / _SEED).unlink(missing_ok=True)
        for left in self._state.glob(".*.part"):
            left.unlink()
        part = self._state / ".token.part"
        with self._new_file(part) as file:
            file.write(token.encode())
        self._finish(part, "token")

    @contextmanager
    def new_seed(self) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
        """Yield a file for a seed that arrives, and what puts it in place. Each has its own: two may arrive at once."""
        self._seeds += 1
        part = self._state / f".{_SEED}-{self._seeds}.part"
        try:
            with self._new_file(part) as file:
                yield file, partial(self._finish, part, _SEED)
        finally:
            part.unlink(missing_ok=True)

    def _own(self, directory: Path, mode: int) -> None:
        directory.mkdir(mode=mode, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            earlier = os.fstat(descriptor).st_uid
            if earlier != self._uid:
                if earlier != os.geteuid():  # not made just now, but by a start with another user
                    self._give(directory)
                # Last, so that what is killed before is done again.
                os.fchown(descriptor, self._uid, self._gid)
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def _give(self, directory: Path) -> None:
        """Give a directory and everything in it to the user of this start.

        By a program that follows no symbolic link, and descends as deep as an agent may have gone.
        """
        command = ["chown", "-R", "-h", "-f", f"{self._uid}:{self._gid}", "--", str(directory)]
        if subprocess.run(command, check=False).returncode != 0:
            raise OSError(f"the files in {directory} cannot be given to the user {self._uid}:{self._gid}")

    def _new_file(self, path: Path) -> IO[bytes]:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        return os.fdopen(descriptor, "wb")

    def _finish(self, part: Path, name: str) -> None:
        descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.fchown(descriptor, self._uid, self._gid)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.rename(self._state / name)


def _receive_routes(place: _Place) -> list[web.RouteDef]:
    async def receive(request: web.Request) -> web.Response:
        digest, size = hashlib.sha256(), 0
        with place.new_seed() as (file, finish):
            async for chunk in request.content.iter_chunked(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                await asyncio.to_thread(file.write, chunk)
            if digest.hexdigest() != request.query.get("sha256"):
                raise ApiError(Code.VALIDATION_ERROR, "the seed did not arrive complete")
            file.flush()
            await asyncio.to_thread(finish)
        # After the answer: the server waits for it when it closes.
        asyncio.get_running_loop().call_soon(place.is_complete.set)
        return json_response({"size": size})

    return [web.put("/seed", receive)]


def _read_routes(options: argparse.Namespace) -> list[web.RouteDef]:
    async def state(request: web.Request) -> web.StreamResponse:
        return await _send(request, lambda: _pack_state(options.state_dir))

    async def work(request: web.Request) -> web.StreamResponse:
        known = parse_commits(await read_json_object(request))
        packed, bundle = await asyncio.to_thread(_pack_work, options, known)
        return await send_work(request, packed, bundle)

    if options.state_dir:
        return [web.post("/state", state)]
    return [web.post("/work", work)]


async def _send(request: web.Request, pack: Callable[[], IO[bytes]]) -> web.StreamResponse:
    return await send_work(request, {}, await asyncio.to_thread(pack))


def _pack_state(directory: Path) -> IO[bytes]:
    packed = tempfile.TemporaryFile()  # noqa: SIM115  (the caller's to close)
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in _LEFT:
            if (directory / name).exists():
                tar.add(directory / name, name)
    packed.seek(0)
    return packed


def _pack_work(options: argparse.Namespace, known: Sequence[str]) -> tuple[dict[str, Any], IO[bytes]]:
    bundle = tempfile.TemporaryFile()  # noqa: SIM115  (the caller's to close)
    try:
        worktree = workspace_root.sandbox_worktree_path(options.root, options.owner, options.branch)
        repository = workspace_root.sandbox_repository_path(options.root)
        packed = workspace_root.pack_work(repository, worktree, known, bundle)
    except ExecutorError as error:
        bundle.close()
        code = {"worktree_missing": Code.WORKTREE_MISSING}.get(error.code, Code.GIT_FAILED)
        raise ApiError(code, error.message) from error
    bundle.seek(0)
    return packed, bundle


if __name__ == "__main__":
    sys.exit(main())
