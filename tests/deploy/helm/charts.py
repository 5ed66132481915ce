"""The chart in deploy/helm, rendered by Helm with several sets of values."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from tests.services import ROOT

CHART: Final = ROOT / "deploy" / "helm"
NAME, NAMESPACE = "kandev", "kandev-system"
DEFAULTS: Final[Mapping[str, Any]] = {
    "image": {"repository": "registry.example/kandev"},
    "site": {"host": "kandev.example"},
    "sessions": {"image": "registry.example/kandev-agentctl:1"},
}
"""What an operator has to say."""
MINIMAL: Final[Mapping[str, Any]] = {
    **DEFAULTS,
    "sessions": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "upgrade": {"migrate": False, "recoverSessions": False},
    "data": {"existingClaim": "our-disk"},
    "web": {"replicas": 1},
}
EVERYTHING: Final[Mapping[str, Any]] = {
    "fullnameOverride": "agents",
    "image": {
        "repository": "registry.example/kandev",
        "digest": f"sha256:{'a' * 64}",
        "pullPolicy": "Always",
        "pullSecrets": ["registry"],
    },
    "site": {"host": "kandev.example", "trustedProxies": ["10.0.3.0/24", "10.0.4.0/24"]},
    "secrets": {
        "metricsToken": {"name": "kandev-metrics", "key": "token"},
        "more": {"KANDEV_SECRET_KEY_FALLBACKS": {"name": "kandev", "key": "former-secret-keys"}},
    },
    "settings": {"KANDEV_IDLE_SLEEP": "600", "KANDEV_LOG_FORMAT": "console"},
    "hostName": "cluster",
    "data": {"accessMode": "ReadWriteMany", "storageClass": "files", "size": "100Gi"},
    "web": {"replicas": 3},
    "supervisor": {"replicas": 2},
    "worker": {"replicas": 2},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "kandev", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "important",
    "sessions": {
        "image": "registry.example/kandev-agentctl:1",
        "readNodes": True,
        "networkPolicy": {
            "egress": [{"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 443}]}]
        },
    },
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]},
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"a/b": "c"}, "tlsSecret": "kandev-tls"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
SETS: Final[Mapping[str, Mapping[str, Any]]] = {"defaults": DEFAULTS, "minimal": MINIMAL, "everything": EVERYTHING}


class Refused(Exception):
    """Helm refuses the values; its message says why."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """What Helm makes of the chart."""

    manifests: Mapping[str, str]
    """By the path of the template."""
    findings: tuple[str, ...]
    """What `helm lint` has found."""
    parsed: tuple[dict[str, Any], ...]

    def objects(self) -> tuple[dict[str, Any], ...]:
        """Return every object; do not change them, because all tests share them."""
        return self.parsed

    def named(self, kind: str, name: str) -> dict[str, Any]:
        """Return the object with a kind and a name."""
        (found,) = (one for one in self.objects() if (one["kind"], one["metadata"]["name"]) == (kind, name))
        return found

    def kinds(self) -> set[str]:
        """Return the kinds of the objects."""
        return {one["kind"] for one in self.objects()}

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the component and the specification of the Pods of each Deployment and Job."""
        for one in self.objects():
            if one["kind"] in ("Deployment", "Job"):
                template = one["spec"]["template"]
                yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def render(values: Mapping[str, Any], namespace: str = NAMESPACE, *, has_monitors: bool = True) -> Rendered:
    """Render the chart, for a cluster with the Prometheus operator unless said otherwise; raises Refused."""
    return _render(json.dumps(values), namespace, has_monitors)


@cache
def _render(values: str, namespace: str, has_monitors: bool) -> Rendered:
    chart = _chart_with_monitors() if has_monitors else CHART
    request = json.dumps({"values": json.loads(values), "name": NAME, "namespace": namespace})
    command = [sys.executable, str(Path(__file__).with_name("render.py")), str(chart)]
    done = subprocess.run(command, input=request, check=True, capture_output=True, text=True, timeout=120)
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise Refused(answer["error"])
    manifests = answer["manifests"]
    texts = (text for path, text in sorted(manifests.items()) if path.endswith(".yaml"))
    parsed = tuple(found for text in texts for found in yaml.load_all(text, yaml.CSafeLoader) if found)
    return Rendered(manifests, tuple(one["error"] for one in answer["findings"]), parsed)


@cache
def _chart_with_monitors() -> Path:
    """Return a copy that takes ServiceMonitors for known: Helm's library cannot be told what a cluster has."""
    directory = Path(tempfile.mkdtemp(prefix="kandev-chart-"))
    atexit.register(shutil.rmtree, directory)
    copy = directory / "kandev"
    shutil.copytree(CHART, copy)
    checks = copy / "templates" / "checks.yaml"
    asks = '(.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")'
    text = checks.read_text()
    assert asks in text
    checks.write_text(text.replace(asks, "true"))
    return copy


def with_value(path: str, value: Any) -> dict[str, Any]:
    """Return ``DEFAULTS`` with one more value, at a path such as ``image.tag``."""
    values: dict[str, Any] = json.loads(json.dumps(DEFAULTS))
    *parents, name = path.split(".")
    at = values
    for parent in parents:
        at = at.setdefault(parent, {})
    at[name] = value
    return values
