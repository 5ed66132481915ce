"""One container of the stand-in: a process of this machine with its own root directory and process ids.

Its image is this machine: Python, git and a shell, and agentctl where deploy/Dockerfile.agentctl puts it. Its
network is that of the machine, so that each Pod gets an address of the loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PROGRAMS: Final = ("unshare", "mount", "chroot", "setpriv", "git")
_PROJECT: Final = Path(__file__).resolve().parents[3]
_PACKAGES: Final = ("wire", "machine", "agentctl", "demo_agent")
_IMAGE: Final = "/opt/kandev"
ENTRYPOINT: Final = ("python3", "-P", "-m", "executors_app.agentctl", "serve")
ENVIRONMENT: Final = {
    "PATH": f"{_IMAGE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": f"{_IMAGE}:{_IMAGE}/packages",
    "PYTHONNOUSERSITE": "1",
    "HOME": "/home/agent",
    "LANG": "C.UTF-8",
}
"""What the image sets, as deploy/Dockerfile.agentctl does."""
_GIT_CONFIG: Final = "[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n[safe]\n\tdirectory = *\n"
_ACCOUNTS: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
_DEMO_AGENT: Final = f'#!/bin/sh\nexec python3 -I {_IMAGE}/executors_app/demo_agent "$@"\n'
_ALL_CAPABILITIES: Final = ("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "net_bind_service", "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap")  # fmt: skip
"""What a container has by default."""


def missing() -> str:
    """Return why no container can be started here, or an empty string."""
    lacking = [name for name in PROGRAMS if not shutil.which(name)]
    if lacking:
        return f"these programs are not installed: {', '.join(lacking)}"
    if os.geteuid() != 0:
        return "only root can give a process its own root directory"
    return ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of this machine in a container."""

    source: Path
    target: str
    read_only: bool = False


class Container:
    """A container that was started. Its processes end with its first one."""

    def __init__(self, process: asyncio.subprocess.Process):
        self._process = process
        self._is_killed = False

    async def wait(self) -> int:
        """Wait for its end; return the exit code, 128 and the number of the signal if one ended it."""
        code = await self._process.wait()
        if self._is_killed:
            return 128 + signal.SIGKILL  # which `unshare`, killed after its child, does not always say
        return code if code >= 0 else 128 - code

    def send_signal(self, number: int) -> None:
        """Send a signal to its first process; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            for pid in self._first_process():
                os.kill(pid, number)
            if number == signal.SIGKILL and self._process.returncode is None:
                self._is_killed = True
                # asyncio's own `kill` first asks whether the process has ended, and then nobody learns its exit code.
                os.kill(self._process.pid, number)

    def memory(self) -> int:
        """Return the bytes of memory of its first process."""
        for pid in self._first_process():
            with contextlib.suppress(OSError):
                return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def _first_process(self) -> list[int]:
        """Return the process with the number 1 inside, which is the child of ``unshare``."""
        outer = self._process.pid
        try:
            return [int(pid) for pid in Path(f"/proc/{outer}/task/{outer}/children").read_text().split()]
        except OSError:
            return []


async def start(
    root: Path, description: Mapping[str, Any], mounts: Sequence[Mount], env: Mapping[str, str], log: Path
) -> Container:
    """Start a container of a Pod as its description says, with ``root`` as an empty place for its root directory."""
    command = [*description.get("command", ENTRYPOINT), *description.get("args", ())]
    root.mkdir(parents=True, exist_ok=True)
    script = _script(root, description, mounts, command)
    namespaces = ("--mount", "--pid", "--ipc", "--fork", "--kill-child=SIGKILL", "--propagation", "private")
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig=KILL", "--", "unshare", *namespaces),
        *("sh", "-euc", f"exec 9>&1 >>{shlex.quote(str(log))} 2>&1\n{script}"),
        env=ENVIRONMENT | dict(env) | {"PATH": f"{ENVIRONMENT['PATH']}:{os.environ['PATH']}"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    # Until the program is started: a signal that comes before that would be lost.
    await process.stdout.read(1)
    return Container(process)


def _script(root: Path, description: Mapping[str, Any], mounts: Sequence[Mount], command: Sequence[str]) -> str:
    """Return the script that makes the root directory and then becomes the program."""
    lines = ["umask 022", f"mount -t tmpfs -o mode=0755,size=16m tmpfs {root}", f"cd {root}"]
    lines += _image_files()
    for mount in (*_image_mounts(), *mounts):
        lines += _mount_lines(mount)
    lines.append("mount -t proc proc proc")
    security = description.get("securityContext", {})
    if security.get("readOnlyRootFilesystem"):
        lines.append(f"mount -o remount,ro,bind {root}")
    directory = description.get("workingDir", "/")
    inside = f"cd {shlex.quote(directory)} && echo >&9 && exec 9>&- && exec {shlex.join(command)}"
    lines.append(f"exec chroot . {shlex.join([*_privileges(security), 'sh', '-c', inside])}")
    return "\n".join(lines)


def _image_mounts() -> list[Mount]:
    """Return what the image takes from this machine, without copying it."""
    python = Path(sys.base_prefix).resolve()
    mounts = [Mount(python, str(python), read_only=True)]
    for name in ("usr", "bin", "sbin", "lib", "lib64"):
        top = Path("/") / name
        if top.is_dir() and not top.is_symlink():
            mounts.append(Mount(top, str(top), read_only=True))
    mounts.append(Mount(Path("/dev"), "/dev"))
    mounts.append(Mount(Path(sysconfig.get_path("purelib")), f"{_IMAGE}/packages", read_only=True))
    for name in _PACKAGES:
        place = f"{_IMAGE}/executors_app/{name}"
        mounts.append(Mount(_PROJECT / "executors_app" / name, place, read_only=True))
    return mounts


def _mount_lines(mount: Mount) -> list[str]:
    source, target = shlex.quote(str(mount.source)), shlex.quote(mount.target.lstrip("/"))
    if mount.source.is_dir():
        lines = [f"mkdir -p {target}"]
    else:
        lines = [f"mkdir -p {shlex.quote(str(Path(mount.target.lstrip('/')).parent))}", f"touch {target}"]
    lines.append(f"mount --bind {source} {target}")
    if mount.read_only:
        lines.append(f"mount -o remount,ro,bind {target}")
    return lines


def _image_files() -> list[str]:
    """Return the lines that write the image's few files of its own."""
    lines = [
        "mkdir -p etc opt/kandev/bin opt/kandev/executors_app root var/tmp proc tmp run home/agent",
        "chmod 1777 tmp var/tmp home/agent",
        "mkdir -p var/lib/agentctl/state",
        "chmod 0710 var/lib/agentctl",
        "chown 61817:61817 var/lib/agentctl var/lib/agentctl/state",
    ]
    for name in ("bin", "sbin", "lib", "lib64"):
        top = Path("/") / name
        if top.is_symlink():
            lines.append(f"ln -s {top.readlink()} {name}")
    interpreter = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    lines.append(f"ln -s {interpreter} opt/kandev/bin/python3")
    package = (_PROJECT / "executors_app" / "__init__.py").read_text()
    files = {
        "etc/passwd": _ACCOUNTS,
        "etc/gitconfig": _GIT_CONFIG,
        "etc/hosts": "127.0.0.1 localhost\n",
        "opt/kandev/executors_app/__init__.py": package,
        "opt/kandev/bin/kandev-demo-agent": _DEMO_AGENT,
    }
    for name, text in files.items():
        lines.append(f"printf %s {shlex.quote(text)} > {name}")
    lines.append("chmod 755 opt/kandev/bin/kandev-demo-agent")
    return lines


def _privileges(security: Mapping[str, Any]) -> list[str]:
    """Return the command that gives up what the security context of a container does not allow."""
    listed = security.get("capabilities", {})
    kept = set() if "ALL" in listed.get("drop", ()) else set(_ALL_CAPABILITIES)
    kept |= {name.lower() for name in listed.get("add", ())}
    bounds = ",".join(["-all", *(f"+{name}" for name in sorted(kept))])
    command = ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all"]
    if not security.get("allowPrivilegeEscalation", True):
        command.append("--no-new-privs")
    group = security.get("runAsGroup", 0)
    command += [f"--reuid={security.get('runAsUser', 0)}", f"--regid={group}", "--clear-groups", "--"]
    return command
