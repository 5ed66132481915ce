"""The settings of one executor whose sessions run in a cluster, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from executors_app.agentctl_client.cluster_access import ClusterAddress
from executors_app.agentctl_client.pod_tunnel import ADDRESS_LIMIT
from executors_app.machine.process.spawning import AGENTCTL_UID
from executors_app.runtimes.kubernetes.pod_fields import check_pod_fields

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_NODE_LABEL: Final = re.compile(
    r"(?=.{1,317}$)([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
)
_NODE_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_USER: Final = re.compile(r"(\d{1,9}):(\d{1,9})")
_ACCESS_MODES: Final = ("ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany")
_PULL_POLICIES: Final = ("", "Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True)
class KubernetesConfig:
    """The settings of one executor; every one has a default."""

    kubeconfig: str = ""
    """Absolute path of a kubeconfig on this machine; empty: the cluster that Kandev runs in."""
    context: str = ""
    namespace: str = "kandev-sessions"
    """The one that the Helm chart and the documents make."""
    image: str = ""
    """Empty: ``KANDEV_AGENTCTL_IMAGE``."""
    image_pull_policy: str = ""
    """Empty: the cluster's own default."""
    pull_secrets: str = ""
    """Names of Secrets with credentials for the image's registry, separated by commas."""
    memory_mb: int = 4096
    """MiB that the scheduler reserves for a session, and its limit."""
    cpu_request: float = 0.25
    """Cores that the scheduler reserves for a session."""
    cpus: float = 0.0
    """Limit in cores; 0: none."""
    storage_gb: int = 10
    """GiB of a session's volume."""
    storage_class: str = ""
    """Empty: the cluster's default."""
    access_mode: str = "ReadWriteOnce"
    service_account: str = ""
    """Empty: the namespace's default. Its token is never mounted."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    user: str = "1000:1000"
    """``UID:GID`` of files and agents."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the Pod (``pod_fields``)."""

    @property
    def cluster(self) -> ClusterAddress:
        """The address of the cluster."""
        return ClusterAddress(self.kubeconfig, self.context)

    @property
    def is_inside(self) -> bool:
        """Whether the control plane runs in the cluster, so that it reaches Pods by their addresses."""
        return not self.kubeconfig

    @property
    def pull_secret_names(self) -> list[str]:
        """The names in ``pull_secrets``."""
        return [name for part in self.pull_secrets.split(",") if (name := part.strip())]


def read_kubernetes_config(config: Mapping[str, Any]) -> KubernetesConfig:
    """Return the checked settings; raises ValueError with one clear sentence."""
    known = [one.name for one in fields(KubernetesConfig)]
    if unknown := sorted(set(map(str, config)) - set(known)):
        raise ValueError(f"kubernetes has no setting {', '.join(unknown)}. Its settings are {', '.join(known)}.")
    read = KubernetesConfig(**config)
    _check_cluster(read)
    _check_names(read)
    _check_choice("image_pull_policy", read.image_pull_policy, _PULL_POLICIES)
    _check_choice("access_mode", read.access_mode, _ACCESS_MODES)
    _check_number("memory_mb", read.memory_mb, 128, whole=True)
    _check_number("storage_gb", read.storage_gb, 1, whole=True)
    _check_number("cpu_request", read.cpu_request, 0, whole=False)
    _check_number("cpus", read.cpus, 0, whole=False)
    if read.cpus and read.cpu_request > read.cpus:
        raise ValueError("cpu_request must not be above cpus.")
    _check_node_selector(read.node_selector)
    _check_user(read.user)
    check_pod_fields(read.pod)
    return read


def _check_cluster(read: KubernetesConfig) -> None:
    for name in ("kubeconfig", "context", "image"):
        _check_text(name, getattr(read, name))
    if read.kubeconfig and not read.kubeconfig.startswith("/"):
        raise ValueError("kubeconfig must be the absolute path of a file on this machine.")
    if read.kubeconfig and (problem := read.cluster.problem()):
        raise ValueError(problem)
    if read.context and not read.kubeconfig:
        raise ValueError("context has no effect without kubeconfig. Remove it.")
    if len(f"{read.kubeconfig}{read.context}".encode()) > ADDRESS_LIMIT:
        raise ValueError(f"kubeconfig and context may have {ADDRESS_LIMIT} bytes together. Use a shorter path.")


def _check_names(read: KubernetesConfig) -> None:
    _check_name("namespace", read.namespace, _LABEL)
    for name in ("storage_class", "service_account"):
        if getattr(read, name):
            _check_name(name, getattr(read, name), _NAME)
    if not isinstance(read.pull_secrets, str):
        raise ValueError("pull_secrets must be names separated by commas.")
    for name in read.pull_secret_names:
        _check_name("pull_secrets", name, _NAME)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or any(letter.isspace() or letter == "\0" for letter in value):
        raise ValueError(f"{name} must be a string without spaces, not {value!r}.")


def _check_name(name: str, value: object, pattern: re.Pattern[str]) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{name} must be the name of an object in the cluster, not {value!r}.")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(filter(None, choices))}, not {value!r}.")


def _check_number(name: str, value: object, least: float, *, whole: bool) -> None:
    if whole:
        kinds: tuple[type, ...] = (int,)
        noun = "whole number"
    else:
        kinds = (int, float)
        noun = "number"
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= float(str(value)) < 2**31:
        raise ValueError(f"{name} must be a {noun} of at least {least:g}, not {value!r}.")


def _check_node_selector(value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError("node_selector must be an object of labels and values.")
    for label, wanted in value.items():
        if not isinstance(label, str) or not _NODE_LABEL.fullmatch(label):
            raise ValueError(f"node_selector: {label!r} is not a label.")
        if not isinstance(wanted, str) or not _NODE_VALUE.fullmatch(wanted):
            raise ValueError(f"node_selector: {wanted!r} is not a value of a label.")


def is_user(value: object) -> bool:
    """Whether this is the ``UID:GID`` of agents: neither root nor agentctl's own."""
    found = _USER.fullmatch(value) if isinstance(value, str) else None
    return found is not None and AGENTCTL_UID not in (int(found[1]), int(found[2])) and int(found[1]) != 0


def _check_user(value: object) -> None:
    if not is_user(value):
        raise ValueError(
            f"user must be UID:GID, two numbers other than {AGENTCTL_UID}, the first one not 0 (root), not {value!r}."
        )
