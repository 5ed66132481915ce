"""A real Kubernetes of two nodes on this machine, with everything below one directory.

It needs root, a Docker engine's programs, and the cache of `tests.kubernetes.build`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from executors_app.machine.process.identity import ProcessIdentity
from tests.docker import engine as engines
from tests.docker.certificates import Pair
from tests.kubernetes import build, images, network
from tests.kubernetes.api_access import ApiAccess
from tests.kubernetes.certificates import ClusterCertificates, certificate_user, write_kubeconfig
from tests.kubernetes.control_plane import ADMIN, ControlPlane
from tests.kubernetes.namespaces import Namespace, find, kill, launch
from tests.kubernetes.nodes import Node
from tests.waiting import eventually

KUBECTL: Final = Path(sys.executable).with_name("kubectl")
BASE: Final = Path(__file__).with_name("base.yaml")
NAMESPACE: Final = "kandev-sessions"
SERVICE_ACCOUNT: Final = "kandev"
STORAGE_CLASS: Final = "kandev-test"
IMAGE: Final = engines.IMAGE
_HERE: Final = "self"
"""This process's network, for a relay."""
_PROGRAMS: Final = ("nsenter", "unshare", "ip", "mount", "sysctl")


def missing() -> str:
    """Return why no cluster can be started here, or an empty string."""
    lacking = [name for name in _PROGRAMS if not shutil.which(name, path=engines.SEARCHED)]
    if lacking:
        return f"a cluster needs {', '.join(lacking)}"
    return engines.missing() or build.missing()


class Cluster:
    """The cluster whose files are in ``home``; it may have been started by another process."""

    def __init__(self, home: Path):
        self.home = home
        self.control_plane = ControlPlane(home)
        self.nodes = (Node(1, home), Node(2, home))
        self._access: ApiAccess | None = None
        self._ends_with_us = False

    # --- start and end ---

    def start(self, *, ends_with_us: bool) -> None:
        """Start everything and wait until both nodes are ready; end what was started if that fails."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "volumes").mkdir(exist_ok=True)
        try:
            self._start(ends_with_us=ends_with_us)
        except BaseException:
            self.end()
            raise

    def _start(self, *, ends_with_us: bool) -> None:
        self._ends_with_us = ends_with_us
        # What ends with us is started here: the kernel ends it with the thread that has started it.
        certificates = ClusterCertificates(self.home / "certificates")
        plane = self.control_plane
        plane.write_configuration(certificates)
        plane.start(ends_with_us=ends_with_us)
        plane.start_store()
        plane.start_api_server()
        for node in self.nodes:
            node.write_configuration(certificates)
            node.start(ends_with_us=ends_with_us)
            network.connect_node(plane, node, node.number)
            node.start_engine()
        self.relay(self.kubeconfig, ends_with_us=ends_with_us)
        # The images, which nothing needs before the first Pod, take the longest.
        with ThreadPoolExecutor() as beside:
            provided = beside.submit(images.provide, self.nodes)
            self._join_nodes()
            provided.result()
        self._write_service_account(self.service_account_kubeconfig, self.kubeconfig)

    def _join_nodes(self) -> None:
        """Start what needs the API server, and wait until both nodes are ready."""
        eventually(self.answers, timeout=120, describe="the API server answers")
        self.control_plane.start_controllers()
        for node in self.nodes:
            node.wait_for_engine()
            node.start_kubelet()
            node.start_proxy()
        self.apply(BASE)
        eventually(self.is_ready, timeout=180, describe="both nodes are ready, and the service account has a token")

    def end(self) -> None:
        """End every process of the cluster; its files stay."""
        kill(self._processes())
        for machine in self.machines:
            if machine.is_running():
                machine.stop()

    def close(self) -> None:
        """End every process of the cluster and remove its directory."""
        self.end()
        shutil.rmtree(self.home)

    def ensure(self) -> None:
        """Repair whatever was done to it: programs that were killed, nodes without power, partitions."""
        plane = self.control_plane
        for program, start in (("etcd", plane.start_store), ("kube-apiserver", plane.start_api_server)):
            if not plane.processes(program):
                start()
        eventually(self.answers, timeout=120, describe="the API server answers")
        for node in self.nodes:
            if not node.is_running():
                node.start(ends_with_us=self._ends_with_us)
                network.connect_node(plane, node, node.number)
            self.heal(node)
            for program, start in (
                ("dockerd", node.start_engine),
                ("kubelet", node.start_kubelet),
                ("kube-proxy", node.start_proxy),
            ):
                if not node.processes(program):
                    start()
                    node.wait_for_engine()
            self._admit(node)
        eventually(self.is_ready, timeout=180, describe="both nodes are ready")

    def _admit(self, node: Node) -> None:
        """Let a node take Pods again after a drain, and make it known again after its object was deleted."""
        if node.name not in [one["metadata"]["name"] for one in self.read("nodes")["items"]]:
            node.restart_kubelet()
            return
        if self.read("nodes", node.name)["spec"].get("unschedulable"):
            self.change("nodes", node.name, {"spec": {"unschedulable": None}})

    @property
    def machines(self) -> tuple[Namespace, ...]:
        """Return all its namespaces."""
        return (self.control_plane, *self.nodes)

    def _processes(self) -> list[ProcessIdentity]:
        """Return its relays; everything else ends with the namespaces."""
        return find(lambda words: "tests.kubernetes.relay" in words and str(self.home) in words)

    # --- access ---

    @property
    def kubeconfig(self) -> Path:
        """Return the kubeconfig of the administrator, for the network in which the cluster was started."""
        return self.home / "kubeconfig"

    @property
    def service_account_kubeconfig(self) -> Path:
        """Return the kubeconfig of the service account, which may only do what the Role says."""
        return self.home / "kubeconfig-kandev"

    def relay(self, path: Path, *, ends_with_us: bool) -> None:
        """Make the API server reachable from this process's network, and write the administrator's kubeconfig."""
        places = (_HERE, "127.0.0.1", self.control_plane.pid(), network.CONTROL_PLANE_ADDRESS)
        port = self._start_relay(*places, network.API_PORT, ends_with_us=ends_with_us)
        pki = self.control_plane.pki
        admin = certificate_user(Pair(pki / f"{ADMIN[0]}.pem", pki / f"{ADMIN[0]}-key.pem"))
        write_kubeconfig(path, f"https://127.0.0.1:{port}", pki / "ca.pem", admin)

    def publish(self, port: int) -> str:
        """Make a port of this process's network reachable for Pods, as long as this process runs; return HOST:PORT."""
        listens_on = network.CONTROL_PLANE_ADDRESS
        places = (self.control_plane.pid(), listens_on, _HERE, "127.0.0.1")
        return f"{listens_on}:{self._start_relay(*places, port, ends_with_us=True)}"

    def reach(self, node: Node, address: str, port: int) -> int:
        """Make an address that a node knows reachable from here, as long as this process runs; return a local port."""
        return self._start_relay(_HERE, "127.0.0.1", node.pid(), address, port, ends_with_us=True)

    def _start_relay(self, *places: str | int, ends_with_us: bool) -> int:
        """Start a relay between two networks; return the port on which it listens."""
        command = [sys.executable, "-m", "tests.kubernetes.relay", str(self.home), *map(str, places)]
        started = launch(command, self.home / "relay.log", ends_with_us=ends_with_us, speaks=True)
        assert started.stdout is not None
        with started.stdout as output:
            return int(output.readline())

    def join(self, directory: Path) -> Cluster:
        """Return this cluster as seen from this process's network, with kubeconfigs in ``directory``."""
        joined = _JoinedCluster(self.home, directory)
        joined.relay(joined.kubeconfig, ends_with_us=True)
        joined._write_service_account(joined.service_account_kubeconfig, joined.kubeconfig)
        return joined

    def _write_service_account(self, path: Path, like: Path) -> None:
        server = self.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
        token = {"token": base64.b64decode(self._token()).decode()}
        write_kubeconfig(path, server, self.control_plane.pki / "ca.pem", token, NAMESPACE)

    def _token(self) -> str:
        """Return the encoded token of the service account; empty if it has none yet."""
        secrets = self.read("secrets", query="fieldSelector=type=kubernetes.io/service-account-token")["items"]
        owner = "kubernetes.io/service-account.name"
        mine = [one for one in secrets if one["metadata"]["annotations"].get(owner) == SERVICE_ACCOUNT]
        return str(mine[0]["data"]["token"]) if mine else ""

    # --- the API, as the administrator ---

    def kubectl(self, *arguments: str, timeout: float = 60, text: str | None = None) -> str:
        """Run kubectl as the administrator, which must succeed; return its output."""
        done = subprocess.run(
            [str(KUBECTL), f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env={"PATH": os.defpath, "HOME": str(self.home)},
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def read(self, kind: str, name: str = "", query: str = "") -> dict[str, Any]:
        """Return an object, or the list of all of its kind; ``kind`` is as in a path, such as *pods*.

        Raises AssertionError if there is none, and OSError if the API server does not answer.
        """
        found: dict[str, Any] = json.loads(self.ask("GET", _path(kind, name, query)))
        return found

    def change(self, kind: str, name: str, patch: Mapping[str, Any]) -> None:
        """Merge a patch into an object."""
        self.ask("PATCH", _path(kind, name), patch)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = 20) -> bytes:
        """Ask the API server as the administrator; see `ApiAccess.ask`."""
        if self._access is None:
            self._access = ApiAccess(self.kubeconfig)
        return self._access.ask(method, path, body, timeout)

    def apply(self, *manifests: Path | Mapping[str, Any]) -> None:
        """Create or change what manifests describe, given as files or objects."""
        for one in manifests:
            text = one.read_text() if isinstance(one, Path) else json.dumps(one)
            self.kubectl("apply", "--validate=false", "-f", "-", text=text)

    def service_account_may(self, verb: str, resource: str) -> bool:
        """Return whether the service account may do something in its namespace."""
        account = f"--as=system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
        with suppress(AssertionError):
            return self.kubectl("auth", "can-i", verb, resource, account).strip() == "yes"
        return False

    def answers(self) -> bool:
        """Return whether the API server says that it is ready."""
        with suppress(AssertionError, OSError):
            return self.ask("GET", "/readyz", timeout=3) == b"ok"
        return False

    def is_ready(self) -> bool:
        """Return whether every node is ready and the service account has a token."""
        return self.ready_nodes() == [node.name for node in self.nodes] and bool(self._token())

    def ready_nodes(self) -> list[str]:
        """Return the names of the nodes that are ready."""
        return [one["metadata"]["name"] for one in self.read("nodes")["items"] if _is_ready(one)]

    def remove_sessions(self) -> None:
        """Remove every Pod, claim and Secret of tests by force; their containers end a moment later."""
        for pod in self.read("pods")["items"]:
            if pod["metadata"].get("finalizers"):
                self.change("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
        mine = "fieldSelector=type!=kubernetes.io/service-account-token"
        for kind, query in (("pods", ""), ("persistentvolumeclaims", ""), ("secrets", mine)):
            self.ask("DELETE", _path(kind, query=query), {"gracePeriodSeconds": 0})

    # --- faults ---

    def node_of(self, pod: str) -> Node:
        """Return the node on which a Pod runs."""
        name = self.read("pods", pod)["spec"]["nodeName"]
        return next(node for node in self.nodes if node.name == name)

    def partition(self, node: Node) -> None:
        """Cut a node off: it goes on, but nothing reaches it and it reaches nothing."""
        network.unplug(self.control_plane, node.number)

    def heal(self, node: Node) -> None:
        """End the partition of a node."""
        network.plug_in(self.control_plane, node.number)

    def volume_directory(self, claim: str) -> Path:
        """Return where this machine has the files of a PersistentVolumeClaim."""
        volume = self.read("persistentvolumeclaims", claim)["spec"]["volumeName"]
        path = Path(self.read("persistentvolumes", volume)["spec"]["hostPath"]["path"])
        return self.home / "volumes" / path.name


class _JoinedCluster(Cluster):
    """A cluster of another network, with kubeconfigs of one's own."""

    def __init__(self, home: Path, directory: Path):
        super().__init__(home)
        self._directory = directory

    @property
    def kubeconfig(self) -> Path:
        return self._directory / "kubeconfig"

    @property
    def service_account_kubeconfig(self) -> Path:
        return self._directory / "kubeconfig-kandev"


def _path(kind: str, name: str = "", query: str = "") -> str:
    path = "/api/v1/"
    if kind not in ("nodes", "persistentvolumes"):
        path += f"namespaces/{NAMESPACE}/"
    path += kind
    if name:
        path += f"/{name}"
    if query:
        path += f"?{query}"
    return path


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions: Sequence[Mapping[str, str]] = node["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
