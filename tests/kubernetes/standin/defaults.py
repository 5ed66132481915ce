"""What the API adds to the objects that it is given."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final

from tests.kubernetes.standin import answers
from tests.kubernetes.standin.store import Object

_NOT_A_NAME: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_PROTECTION: Final = "kubernetes.io/pvc-protection"


def _pod(given: Object) -> Object:
    """Return a Pod with the defaults of the API."""
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"} | given["spec"]
    name = given["metadata"]["name"]
    if not spec.get("containers"):
        raise answers.invalid("pods", name, "spec.containers", "Required value")
    if len(name) > 253 or name != name.lower():
        raise answers.invalid("pods", name, "metadata.name", f'Invalid value: "{name}": {_NOT_A_NAME}')
    for one in (*spec["containers"], *spec.get("initContainers", ())):
        one.setdefault("imagePullPolicy", "IfNotPresent")
    status = {"phase": "Pending", "qosClass": _quality(spec)}
    return given | {"spec": spec, "status": status}


def _quality(spec: Object) -> str:
    resources = [one.get("resources", {}) for one in spec["containers"]]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    if all(_is_guaranteed(one) for one in resources):
        return "Guaranteed"
    return "Burstable"


def _is_guaranteed(resources: Object) -> bool:
    limits = resources.get("limits") or {}
    return {"cpu", "memory"} <= set(limits) and resources.get("requests", limits) == limits


def _claim(given: Object) -> Object:
    """Return a PersistentVolumeClaim with the defaults of the API."""
    metadata = given["metadata"] | {"finalizers": [*given["metadata"].get("finalizers", ()), _PROTECTION]}
    spec = {"volumeMode": "Filesystem"} | given["spec"]
    return given | {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _secret(given: Object) -> Object:
    """Return a Secret with the defaults of the API; texts become data."""
    made: Object = {"type": "Opaque"} | given
    texts: dict[str, str] = made.pop("stringData", None) or {}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    if data or made.get("data"):
        made["data"] = (made.get("data") or {}) | data
    return made


DEFAULTS: Final[Mapping[str, Callable[[Object], Object]]] = {
    "pods": _pod,
    "persistentvolumeclaims": _claim,
    "secrets": _secret,
    "events": lambda given: given,
}
