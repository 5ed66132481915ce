"""The first process of a namespace: gives it files of its own, reports, and collects processes that lost their parent.

Usage: namespace_init.py NAME DIRECTORY VOLUMES. Programs with fixed paths then write below DIRECTORY, and the paths of
volumes that Kubernetes makes lead to VOLUMES. It needs nothing of the project, so it runs without its packages.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

FIXED_PATHS = ("/var/log", "/var/lib")
"""Where kubelet, dockerd and the plugins of the network write, whatever they are told."""
HOST_PATH_VOLUMES = "/tmp/hostpath_pv"
"""An empty directory outside of the namespaces; it stays, because removing it would unmount it inside of others."""


def main(name: str, directory: Path, volumes: Path) -> None:
    """Prepare the namespace, print a line, and wait for children until killed."""
    socket.sethostname(name)
    mount("-t", "tmpfs", "tmpfs", "/run")
    for path in FIXED_PATHS:
        own = directory / path.replace("/", "-")[1:]
        own.mkdir(parents=True, exist_ok=True)
        mount("--bind", str(own), path)
    Path(HOST_PATH_VOLUMES).mkdir(exist_ok=True)
    mount("--bind", str(volumes), HOST_PATH_VOLUMES)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        signal.sigwait({signal.SIGCHLD})
        while reaped():
            pass


def mount(*arguments: str) -> None:
    """Mount something in this namespace."""
    subprocess.run(["mount", *arguments], check=True)


def reaped() -> bool:
    """Collect one ended child; return whether there was one."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return pid > 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
