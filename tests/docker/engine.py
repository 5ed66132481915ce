"""A separate Docker engine in a temporary directory, which neither sees nor touches any other engine.

It creates no default bridge and no firewall rules, so that other engines are not disturbed. Published ports are served
by its userland proxy. What it started ends with it.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import docker

from executors_app.machine.process import identity
from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.engine import open_engine
from executors_app.runtimes.containers.sites import container_name
from executors_app.wire.errors import RuntimeUnavailable
from tests.docker import machine_image
from tests.waiting import eventually

PROGRAMS: Final = ("dockerd", "containerd", "runc", "ldd")
SEARCHED: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
ADDRESSES: Final = "10.213.0.0/16"
IMAGE: Final = "kandev-agentctl:test"
ROOT: Final = Path(__file__).resolve().parents[2]


def missing() -> str:
    """Return why no engine can be started here, or an empty string."""
    lacking = [name for name in PROGRAMS if not shutil.which(name, path=SEARCHED)]
    if lacking:
        return f"no Docker engine is installed: {', '.join(lacking)}"
    if os.geteuid() != 0:
        return "only root can start a Docker engine of its own"
    return ""


class Engine:
    """A Docker engine; ``start`` may be called again after ``stop`` or ``kill``."""

    def __init__(self, addresses: str = ADDRESSES) -> None:
        self.addresses = addresses
        self.home = Path(tempfile.mkdtemp(prefix="kandev-docker-", dir="/tmp"))
        self.url = f"unix://{self.home}/docker.sock"
        self.more_options: list[str] = []
        """Of dockerd, beside those that every engine here has."""
        self._process: subprocess.Popen[bytes] | None = None
        self._live_restore = False
        self._api_version = "auto"

    def start(self, *, live_restore: bool = False) -> None:
        """Start the engine and wait until it answers; retry if a killed engine left something in the way."""
        self._live_restore = live_restore
        for _ in range(3):
            self._launch(live_restore=live_restore)
            if eventually(
                lambda: self._answers() or self._has_ended(), timeout=60, describe="the engine answers or has ended"
            ):
                if self._answers():
                    return
                self.stop()
        raise AssertionError(f"the engine does not start: {self.log()[-2000:]}")

    def ensure(self) -> None:
        """Make sure that the engine runs and answers, without live-restore, whatever was done to it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        if self._live_restore or self._has_ended() or not self._answers():
            self.stop()
            self.start()

    def stop(self) -> None:
        """Stop the engine as a service manager does: without live-restore its containers stop too."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the engine alone with SIGKILL; its containers continue for now."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the engine's process with SIGSTOP: it keeps its socket open and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen engine continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self, timeout: float = 60) -> Any:
        """Return a client of the engine, for checks."""
        client = docker.APIClient(base_url=self.url, timeout=timeout, version=self._api_version)
        self._api_version = client.api_version  # asked for once: the engine runs two programs for the answer
        return client

    def wait_for_end_of(self, execution_id: str) -> None:
        """Wait until the engine knows that the container has ended, which it learns with a delay."""
        client = self.client()
        try:
            client.wait(container_name(execution_id), timeout=60)
        finally:
            client.close()

    def events(self, since: float, until: float | None = None) -> list[tuple[str, str]]:
        """Return (kind, action) of all its events between two times."""
        client = self.client()
        try:
            found = client.events(since=since, until=until or time.time(), decode=True)
            return [(event["Type"], event["Action"]) for event in found]
        finally:
            client.close()

    def calls(self) -> list[str]:
        """Return every request to its API so far, as METHOD PATH."""
        return re.findall(r'msg="Calling (\w+ [^"]+)"', self.log())

    def log(self) -> str:
        """Return its log."""
        return (self.home / "log").read_text(errors="replace")

    def close(self) -> None:
        """Remove every container, end the engine and what it started, and delete its directory."""
        if self._process is not None and self._answers():
            client = self.client()
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True, v=True)
            client.close()
        self.stop()
        identity.kill_all(
            [who for pid in identity.list_pids() if self._is_mine(pid) and (who := identity.identify(pid))], 10
        )
        self._unmount()
        shutil.rmtree(self.home, ignore_errors=True)

    def _launch(self, *, live_restore: bool) -> None:
        options = {
            "--data-root": str(self.home / "root"),
            "--exec-root": str(self.home / "exec"),
            "--host": self.url,
            "--pidfile": str(self.home / "pid"),
            "--bridge": "none",
            "--iptables": "false",
            "--ip-masq": "false",
            "--default-address-pool": f"base={self.addresses},size=28",
            "--live-restore": str(live_restore).lower(),
            "--shutdown-timeout": "5",
            "--debug": "true",  # its log then contains every request
        }
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(shutil.which("dockerd", path=SEARCHED)),
                    *(f"{name}={value}" for name, value in options.items()),
                    *self.more_options,
                ],
                env=dict(os.environ) | {"PATH": SEARCHED},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_us,  # noqa: PLW1509 - nothing but one call of the kernel's
            )

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            process.wait(60)

    def _answers(self) -> bool:
        try:
            with open_engine(EngineAddress(self.url), 5) as engine:
                return bool(engine.identity())
        except RuntimeUnavailable:
            return False

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _is_mine(self, pid: int) -> bool:
        """Return whether a process is its containerd or a shim that it left: their arguments name its directory."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return False
        return any(str(self.home) in word for word in words) and "container" in words[0]

    def _unmount(self) -> None:
        for line in Path("/proc/self/mounts").read_text().splitlines()[::-1]:
            if str(self.home) in line:
                subprocess.run(["umount", "-l", line.split(" ")[1]], check=False, capture_output=True)


def _end_with_us() -> None:
    """Ask the kernel, in the child process, to end it when the tests end for any reason."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class HasClient(Protocol):
    """Whatever has a Docker engine, as `Engine`."""

    def client(self, timeout: float = 60) -> Any:
        """Return a client of the engine, which the caller closes."""
        ...


def build_image(engine: HasClient) -> str:
    """Build deploy/Dockerfile.agentctl on a base of this machine's own files; return the image's name."""
    client = engine.client(timeout=300)
    try:
        base = machine_image.import_into(client)
        return build(client, "deploy/Dockerfile.agentctl", ("requirements", "executors_app"), IMAGE, BASE=base)
    finally:
        client.close()


def build(client: Any, dockerfile: str, names: Iterable[str], tag: str, **arguments: str) -> str:
    """Build a Dockerfile without a network from files and directories of the project; return ``tag``."""
    progress = client.build(
        fileobj=_context((dockerfile, *names)),
        custom_context=True,
        dockerfile=dockerfile,
        tag=tag,
        buildargs=arguments,
        network_mode="none",
        rm=True,
        decode=True,
    )
    output = list(progress)
    assert not [line for line in output if "error" in line], output[-3:]
    return tag


def add_programs(engine: Engine, programs: Path) -> str:
    """Build another image with the programs of a directory on its path; return its name."""
    client = engine.client(timeout=300)
    try:
        made = client.create_container(IMAGE)["Id"]
        with machine_image.layer_of(programs, Path("/usr/local/bin")) as layer:
            client.put_archive(made, "/", layer)
        name, tag = IMAGE.split(":")
        client.commit(made, repository=f"{name}-more", tag=tag)
        client.remove_container(made)
    finally:
        client.close()
    return f"{name}-more:{tag}"


def _context(names: Iterable[str]) -> io.BytesIO:
    """Return the build context, filtered as by ``.dockerignore``, as a tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            tar.add(ROOT / name, name, filter=lambda info: None if _is_left_out(info.name) else info)
    packed.seek(0)
    return packed


def _is_left_out(name: str) -> bool:
    return "__pycache__" in name or name == "frontend/node_modules"
