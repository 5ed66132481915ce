"""A node of the cluster: a namespace with a Docker engine, a kubelet and a kube-proxy of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import docker
import yaml
from docker.errors import NotFound

from executors_app.runtimes.containers.connection import EngineAddress
from executors_app.runtimes.containers.engine import open_engine
from executors_app.wire.errors import RuntimeUnavailable
from tests.kubernetes import build, network
from tests.kubernetes.certificates import ClusterCertificates, certificate_user, write_kubeconfig
from tests.kubernetes.images import PAUSE
from tests.kubernetes.namespaces import SEARCHED, Namespace
from tests.waiting import eventually

CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
ROOM: Final = 1 << 30
"""Bytes that may be written on a machine of the tests, by others, before a node evicts its Pods."""
_NO_SANDBOX: Final = "io.kubernetes.docker.type=container"
_SHARES: Final = 16 * 1024
"""Weight of all containers of a node together, when processors are scarce; one process of this machine has 1024."""
OOM_SAFE_RUNC: Final = Path(__file__).with_name("runc-without-oom-score")


class Node(Namespace):
    """One node, ``number`` counted from 1."""

    def __init__(self, number: int, home: Path):
        name = f"node{number}"
        super().__init__(name, home / name, home / "volumes")
        self.number = number

    # --- power ---

    def start(self, *, ends_with_us: bool) -> None:
        """Create the machine; what its engine stored is still there after an earlier end."""
        super().start(ends_with_us=ends_with_us)
        shutil.rmtree(self.directory / "docker" / "exec", ignore_errors=True)  # would not survive a reboot either
        for name in ("plugins", "docker", "cni", "kubelet"):
            (self.directory / name).mkdir(exist_ok=True)
        shutil.copy(OOM_SAFE_RUNC, self.directory)
        processors = CONTROL_GROUPS / "cpu"
        if processors.is_dir():  # in version 1 of control groups
            group = processors / self.control_group
            group.mkdir(exist_ok=True)
            (group / "cpu.shares").write_text(str(_SHARES))

    def stop(self) -> None:
        """End every process of the node at once, and remove the control groups that its containers leave."""
        super().stop()
        for hierarchy in (CONTROL_GROUPS, *CONTROL_GROUPS.iterdir()):
            group = hierarchy / self.control_group
            if group.is_dir():
                _remove_group(group)

    def write_configuration(self, certificates: ClusterCertificates) -> None:
        """Write what its programs read, with certificates of its own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        address = network.node_address(self.number)
        serving = certificates.server(f"{self.name}-server", address, self.name)
        client = certificates.client(f"system:node:{self.name}", "system:nodes")
        user = certificate_user(client)
        write_kubeconfig(self._kubeconfig, network.API_URL, certificates.authority, user)
        proxy = certificate_user(certificates.client("system:kube-proxy"))
        write_kubeconfig(self.directory / "proxy.kubeconfig", network.API_URL, certificates.authority, proxy)
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "0.0.0.0",  # noqa: S104 - of its own network
            "port": 10250,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(certificates.authority)},
            },
            "authorization": {"mode": "Webhook"},
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "5s",
            "kubeAPIQPS": 50,
            "kubeAPIBurst": 100,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "",
            "clusterDomain": "cluster.local",
            "volumePluginDir": str(self.directory / "plugins"),
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
        }
        (self.directory / "kubelet.yaml").write_text(yaml.safe_dump(configuration))
        addresses = {"type": "host-local", "dataDir": str(self.directory / "addresses")}
        addresses |= {"ranges": [[{"subnet": network.pod_addresses(self.number)}]], "routes": [{"dst": "0.0.0.0/0"}]}  # type: ignore[dict-item]
        bridge = {"cniVersion": "0.4.0", "name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": True}
        (self.directory / "cni").mkdir(exist_ok=True)
        (self.directory / "cni" / "10-bridge.conf").write_text(
            json.dumps({**bridge, "ipMasq": False, "ipam": addresses})
        )

    # --- programs ---

    def start_engine(self) -> None:
        """Start its Docker engine, which answers a moment later."""
        home = self.directory / "docker"
        (home / "pid").unlink(missing_ok=True)  # of an engine that lost its power
        arguments = {
            "--data-root": str(home / "data"),
            "--exec-root": str(home / "exec"),
            "--host": f"unix://{self.socket}",
            "--pidfile": str(home / "pid"),
            "--bridge": "none",
            "--iptables": "false",
            "--ip-masq": "false",
            "--live-restore": "",
            "--cgroup-parent": f"/{self.control_group}",
            "--add-runtime": f"safe={self.directory / OOM_SAFE_RUNC.name}",
            "--default-runtime": "safe",
            "--log-level": "error",
        }
        self.spawn("dockerd", arguments)

    def wait_for_engine(self) -> None:
        """Wait until its Docker engine answers."""
        eventually(self._engine_answers, describe=f"the engine of {self.name} answers")

    def start_kubelet(self) -> None:
        """Start its kubelet; the node becomes ready a moment later."""
        home = self.directory
        plugins = build.unpacked("usr/lib/cni")
        arguments = {
            "--config": str(home / "kubelet.yaml"),
            "--kubeconfig": str(self._kubeconfig),
            "--hostname-override": self.name,
            "--node-ip": network.node_address(self.number),
            "--root-dir": str(home / "kubelet"),
            "--cert-dir": str(home / "kubelet" / "pki"),
            "--container-runtime": "docker",
            "--docker-endpoint": f"unix://{self.socket}",
            "--experimental-dockershim-root-directory": str(home / "dockershim"),
            "--network-plugin": "cni",
            "--cni-conf-dir": str(home / "cni"),
            "--cni-bin-dir": str(plugins),
            "--cni-cache-dir": str(home / "cni-cache"),
            "--pod-infra-container-image": PAUSE,
            "--containerd": str(home / "docker" / "exec" / "containerd" / "containerd.sock"),
            "--seccomp-profile-root": str(home / "seccomp"),
        }
        self.spawn(build.program("kubelet"), arguments, {"PATH": self._path()})

    def start_proxy(self) -> None:
        """Start its kube-proxy, which makes the addresses of Services lead somewhere."""
        arguments = {
            "--kubeconfig": str(self.directory / "proxy.kubeconfig"),
            "--hostname-override": self.name,
            "--proxy-mode": "iptables",
            "--cluster-cidr": network.PODS,
            "--conntrack-max-per-core": "0",  # would be a setting of the whole machine
            "--healthz-bind-address": "127.0.0.1:10256",
            "--metrics-bind-address": "127.0.0.1:10249",
        }
        self.spawn(build.program("kube-proxy"), arguments, {"PATH": self._path()})

    # --- its engine ---

    @property
    def control_group(self) -> str:
        """Return the name of the control group of all its containers, below the root of each hierarchy."""
        digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]
        return f"{self.name}-{digest}"

    @property
    def socket(self) -> Path:
        """Return the socket of its engine."""
        return self.directory / "docker" / "docker.sock"

    def client(self, timeout: float = 60) -> Any:
        """Return a client of its engine; the caller closes it."""
        return docker.APIClient(base_url=f"unix://{self.socket}", timeout=timeout)

    def containers(self) -> list[dict[str, Any]]:
        """Return the running containers of Pods, without those that only hold a network."""
        with self._connected() as client:
            return list(client.containers(filters={"label": _NO_SANDBOX}))

    def signal_container(self, pod_name: str, name: str) -> None:
        """Send a signal to the first process of a Pod's running containers. Raises AssertionError if there is none."""
        with self._connected() as client:
            found = client.containers(filters=_of_pod(pod_name))
            assert found, f"{pod_name} does not run on {self.name}"
            for one in found:
                client.kill(one["Id"], name)

    def run_in(self, pod_name: str, user: str, *command: str) -> tuple[int, str]:
        """Run a command in a Pod's running container; return its exit code and its output."""
        with self._connected() as client:
            [found] = client.containers(filters=_of_pod(pod_name))
            made = client.exec_create(found["Id"], list(command), user=user)
            output: bytes = client.exec_start(made["Id"])
            return int(client.exec_inspect(made["Id"])["ExitCode"]), output.decode(errors="replace")

    def execute(self, pod_name: str, user: str, *command: str) -> str:
        """Run a command in a Pod's running container, which must succeed; return its output."""
        code, output = self.run_in(pod_name, user, *command)
        assert code == 0, output
        return output.strip()

    def collect_garbage(self, pod_name: str) -> None:
        """Remove the ended containers of a Pod, as kubelet does once a minute: its object cannot go before."""
        with self._connected() as client:
            for one in client.containers(all=True, filters=_of_pod(pod_name) | {"status": "exited"}):
                with suppress(NotFound):
                    client.remove_container(one["Id"])

    @contextmanager
    def almost_full(self) -> Iterator[Path]:
        """Let the node evict its Pods if its disk becomes fuller during the block; yield the file that makes it so.

        That file must have twice `ROOM`. A kubelet that starts when it is too full rejects its Pods instead.
        """
        path, filler = self.directory / "kubelet.yaml", self.directory / "filler"
        configuration = path.read_text()
        threshold = {"nodefs.available": str(shutil.disk_usage(self.directory).free - ROOM)}
        changed = yaml.safe_load(configuration) | {"evictionHard": threshold, "evictionPressureTransitionPeriod": "1s"}
        path.write_text(yaml.safe_dump(changed))
        self.restart_kubelet()
        try:
            yield filler
        finally:
            filler.unlink(missing_ok=True)
            path.write_text(configuration)
            self.restart_kubelet()

    def restart_kubelet(self) -> None:
        """Kill its kubelet and start it again: it registers its node only when it starts."""
        self.kill("kubelet")
        self.start_kubelet()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        client = self.client()
        try:
            yield client
        finally:
            client.close()

    @property
    def _kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def _path(self) -> str:
        return f"{build.unpacked('usr/bin')}:{build.unpacked('usr/sbin')}:{SEARCHED}"

    def _engine_answers(self) -> bool:
        try:
            with open_engine(EngineAddress(f"unix://{self.socket}"), 5) as engine:
                return bool(engine.identity())
        except RuntimeUnavailable:
            return False


def _of_pod(name: str) -> dict[str, Any]:
    """Return the filter for the containers of a Pod, without the one that only holds its network."""
    return {"label": [_NO_SANDBOX, f"io.kubernetes.pod.name={name}"]}


def _remove_group(group: Path) -> None:
    """Remove a control group with those below it, once the kernel no longer counts the ended processes in them."""
    below = [Path(directory) for directory, _, _ in os.walk(group, topdown=False)]
    for one in below:
        eventually(lambda one=one: _is_removed(one), describe=f"{one} is empty")  # type: ignore[misc]


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
