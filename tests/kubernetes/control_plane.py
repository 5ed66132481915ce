"""The control plane of the cluster: etcd, API server, controller manager and scheduler in a namespace of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.kubernetes import build, network
from tests.kubernetes.certificates import ClusterCertificates, certificate_user, write_kubeconfig
from tests.kubernetes.namespaces import Namespace

ETCD_URL: Final = "http://127.0.0.1:2379"
ADMIN: Final = ("admin", "system:masters")
"""Name and group of the administrator."""
SECONDS_UNTIL_UNKNOWN: Final = 16
"""How long a node may be silent: shorter than anywhere else, so that tests need not wait."""


class ControlPlane(Namespace):
    """The machine of the control plane."""

    def __init__(self, home: Path):
        super().__init__("control-plane", home / "control-plane", home / "volumes")
        self.pki = home / "certificates"

    def start(self, *, ends_with_us: bool) -> None:
        """Create the machine with its network."""
        super().start(ends_with_us=ends_with_us)
        network.prepare_control_plane(self)

    def write_configuration(self, certificates: ClusterCertificates) -> None:
        """Write what its programs read."""
        self.directory.mkdir(parents=True, exist_ok=True)
        addresses = ("127.0.0.1", network.CONTROL_PLANE_ADDRESS, network.API_SERVICE_ADDRESS)
        names = ("localhost", "kubernetes", "kubernetes.default.svc")
        certificates.server("api-server", *addresses, *names)
        admin = certificate_user(certificates.client(*ADMIN))
        write_kubeconfig(self.directory / "kubeconfig", network.API_URL, certificates.authority, admin)

    def start_store(self) -> None:
        """Start etcd."""
        arguments = {
            "--data-dir": str(self.directory / "etcd"),
            "--listen-client-urls": ETCD_URL,
            "--advertise-client-urls": ETCD_URL,
            "--listen-peer-urls": "http://127.0.0.1:2380",
            "--unsafe-no-fsync": "",
            "--logger": "zap",
        }
        self.spawn(str(build.unpacked("usr/bin/etcd")), arguments)

    def start_api_server(self) -> None:
        """Start the API server; it answers some seconds later."""
        pki = self.pki
        arguments = {
            "--etcd-servers": ETCD_URL,
            "--advertise-address": network.CONTROL_PLANE_ADDRESS,
            "--bind-address": "0.0.0.0",  # noqa: S104 - of its own network
            "--secure-port": str(network.API_PORT),
            "--tls-cert-file": str(pki / "api-server.pem"),
            "--tls-private-key-file": str(pki / "api-server-key.pem"),
            "--client-ca-file": str(pki / "ca.pem"),
            "--service-account-issuer": "https://kubernetes.default.svc",
            "--service-account-signing-key-file": str(pki / "service-accounts.pem"),
            "--service-account-key-file": str(pki / "service-accounts.pem"),
            "--service-cluster-ip-range": network.SERVICES,
            "--authorization-mode": "Node,RBAC",
            "--allow-privileged": "true",
            "--kubelet-preferred-address-types": "InternalIP",
            "--kubelet-certificate-authority": str(pki / "ca.pem"),
            "--kubelet-client-certificate": str(pki / "admin.pem"),
            "--kubelet-client-key": str(pki / "admin-key.pem"),
            "--enable-admission-plugins": "NodeRestriction",
            "--cert-dir": str(self.directory / "api-server"),
            "--event-ttl": "10m",
        }
        self.spawn(build.program("kube-apiserver"), arguments)

    def start_controllers(self) -> None:
        """Start controller manager and scheduler."""
        common = {"--kubeconfig": str(self.directory / "kubeconfig"), "--leader-elect": "false", "--port": "0"}
        common |= {"--bind-address": "127.0.0.1"}
        controllers = {
            **common,
            "--secure-port": "10257",
            "--cert-dir": str(self.directory / "controllers"),
            "--service-account-private-key-file": str(self.pki / "service-accounts.pem"),
            "--root-ca-file": str(self.pki / "ca.pem"),
            "--allocate-node-cidrs": "false",
            "--node-monitor-period": "2s",
            "--node-monitor-grace-period": f"{SECONDS_UNTIL_UNKNOWN}s",
            "--pvclaimbinder-sync-period": "2s",
            "--enable-hostpath-provisioner": "true",
        }
        self.spawn(build.program("kube-controller-manager"), controllers)
        scheduler = {**common, "--secure-port": "10259", "--cert-dir": str(self.directory / "scheduler")}
        self.spawn(build.program("kube-scheduler"), scheduler)
