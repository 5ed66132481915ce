"""The certificates of a cluster: one authority, servers by their addresses, clients by their user and group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.docker.certificates import CLIENT, SERVER, Authority, Pair


class ClusterCertificates:
    """The certificates below a directory."""

    def __init__(self, directory: Path):
        self._authority = Authority(directory)
        self.authority = self._authority.certificate
        self.service_accounts = directory / "service-accounts.pem"
        """The key that signs the tokens of service accounts."""
        key = ec.generate_private_key(ec.SECP256R1())
        form, encryption = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        self.service_accounts.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
        self.service_accounts.chmod(0o600)

    def server(self, name: str, *addresses: str) -> Pair:
        """Return the certificate of a server that is reached by IP addresses or names."""
        return self._authority.issue(name, SERVER, *addresses)

    def client(self, user: str, group: str = "") -> Pair:
        """Return the certificate of a user in a group, as the API server reads them."""
        return self._authority.issue(user, CLIENT, organization=group)


def write_kubeconfig(path: Path, server: str, authority: Path, user: dict[str, Any], namespace: str = "") -> Path:
    """Write a kubeconfig for one user, given by a *token* or by ``certificate_user``; return its path."""
    context = {"cluster": "test", "user": "test"}
    if namespace:
        context["namespace"] = namespace
    cluster = {"server": server, "certificate-authority": str(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o600)
    return path


def certificate_user(pair: Pair) -> dict[str, Any]:
    """Return the part of a kubeconfig that names a client's certificate."""
    return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
