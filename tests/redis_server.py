"""A temporary, in-memory Redis server on the loopback interface; it ends with the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.network import free_port
from tests.postgresql import end_with_us
from tests.services import require
from tests.waiting import eventually


class RedisServer:
    """A server with a password; ``start`` may be called again after ``kill``, which loses all data."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        """``address``: what it listens on; ``*`` are all addresses."""
        self._address = address
        self.home = Path(tempfile.mkdtemp(prefix="kandev-redis-", dir="/tmp"))
        self.port, self.password = free_port(), os.urandom(8).hex()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return ``KANDEV_REDIS_URL``."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = {"bind": self._address, "port": self.port, "requirepass": self.password, "save": "", "dir": self.home}
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *words],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_us,  # noqa: PLW1509 - nothing else runs yet
            )
        eventually(self.answers, describe="Redis answers")

    def answers(self) -> bool:
        """Return whether the server answers."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=5) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def subscribers(self) -> int:
        """Return how many connections subscribe to wake-ups."""
        with redis.Redis.from_url(self.url) as client:
            return sum(int(count) for _, count in client.pubsub_numsub(*client.pubsub_channels("kandev__group__*")))

    def kill(self) -> None:
        """Kill the server with SIGKILL; all its data is lost."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the server's process with SIGSTOP: its connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the server."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    """Yield a running server; without Redis, skip the test, or fail it if services are required."""
    require("redis")
    made = RedisServer()
    try:
        made.start()
        yield made
    finally:
        made.close()
