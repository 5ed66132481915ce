"""Start, describe and end a Kubernetes of two nodes for tests: ``make test-cluster``.

Usage: python -m tests.kubernetes up|down|status [--directory DIRECTORY]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from tests.kubernetes import build
from tests.kubernetes import cluster as clusters
from tests.kubernetes.cluster import Cluster

DIRECTORY: Final = Path("/var/tmp/kandev-test-cluster")


def up(cluster: Cluster) -> int:
    """Build Kubernetes if necessary, start the cluster, and say how to reach it."""
    if cluster.control_plane.is_running():
        return status(cluster)
    build.ensure()
    lacking = clusters.missing()
    if lacking:
        return _fail(lacking)
    started = time.monotonic()
    cluster.start(ends_with_us=False)
    _say(f"started within {time.monotonic() - started:.0f} s")
    return status(cluster)


def down(cluster: Cluster) -> int:
    """End the cluster and remove its directory."""
    if not cluster.home.exists():
        return _fail(f"there is no cluster in {cluster.home}")
    cluster.close()
    _say("ended")
    return 0


def status(cluster: Cluster) -> int:
    """Say whether the cluster runs and how to reach it."""
    if not cluster.control_plane.is_running():
        return _fail(f"no cluster runs in {cluster.home} (make test-cluster)")
    _say(f"Kubernetes {build.VERSION}, ready nodes: {', '.join(cluster.ready_nodes()) or 'none'}")
    _say(f"administrator:   export KUBECONFIG={cluster.kubeconfig}")
    _say(f"service account: export KUBECONFIG={cluster.service_account_kubeconfig}")
    _say(f"namespace {clusters.NAMESPACE}, storage class {clusters.STORAGE_CLASS}, image {clusters.IMAGE}")
    return 0


COMMANDS: Final = {"up": up, "down": down, "status": status}


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="where the cluster's files are")
    given = parser.parse_args()
    return COMMANDS[given.command](Cluster(given.directory.absolute()))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _fail(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
