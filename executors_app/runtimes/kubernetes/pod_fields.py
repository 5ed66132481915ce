"""Further fields that staff may set on the Pods of an executor: an allow-list, so that the rest stays ours.

Names, labels, restart policy, users, capabilities, our volumes and their mounts can never be changed: they are what
keeps an agent in its Pod, and a session's volume with one writer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

_PLAIN: Final[Mapping[str, type]] = {
    "affinity": dict,
    "dnsConfig": dict,
    "dnsPolicy": str,
    "hostAliases": list,
    "priorityClassName": str,
    "runtimeClassName": str,
    "schedulerName": str,
    "tolerations": list,
    "topologySpreadConstraints": list,
}
"""Fields of the Pod's ``spec`` that are taken as they are, with their types."""
_OTHERS: Final = ("annotations", "volumes", "volumeMounts")
_VOLUME_KINDS: Final = ("configMap", "secret", "emptyDir", "persistentVolumeClaim")
OUR_VOLUMES: Final = frozenset({"work", "token", "scratch"})
_OUR_PATHS: Final = (
    *("/workspace", "/home/agent", "/var/lib/agentctl", "/opt/kandev", "/tmp", "/run", "/var/tmp"),  # noqa: S108
    *("/etc", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/proc", "/sys", "/dev", "/volume", "/token"),
)
_ANNOTATION: Final = re.compile(r"(?=.{1,317}$)[a-z0-9A-Z./_-]+")
_RESERVED: Final = "kandev."
_SIZE_LIMIT: Final = 32 << 10


def check_pod_fields(value: object) -> None:
    """Raise ValueError, with one clear sentence, for anything that a Pod of an executor cannot have."""
    if not isinstance(value, Mapping):
        raise ValueError("pod must be an object of fields of a Pod.")
    if len(repr(value)) > _SIZE_LIMIT:
        raise ValueError("pod is too large.")
    known = (*_PLAIN, *_OTHERS)
    if unknown := sorted(set(map(str, value)) - set(known)):
        raise ValueError(f"pod cannot set {', '.join(unknown)}. It can set {', '.join(sorted(known))}.")
    for name, kind in _PLAIN.items():
        if name in value and not isinstance(value[name], kind):
            raise ValueError(f"pod: {name} has the wrong type.")
    _check_annotations(value.get("annotations", {}))
    names = _check_volumes(value.get("volumes", []))
    _check_mounts(value.get("volumeMounts", []), names)


def spec_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that go into the Pod's ``spec`` as they are, without tolerations, to which ours are added."""
    return {name: fields[name] for name in _PLAIN if name in fields and name != "tolerations"}


def _check_annotations(value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError("pod: annotations must be an object of texts.")
    for name, text in value.items():
        if not isinstance(name, str) or not _ANNOTATION.fullmatch(name) or name.startswith(_RESERVED):
            raise ValueError(f"pod: {name!r} cannot be set as an annotation.")
        if not isinstance(text, str):
            raise ValueError(f"pod: the annotation {name} must be a text.")


def _check_volumes(value: object) -> set[str]:
    if not isinstance(value, list):
        raise ValueError("pod: volumes must be a list.")
    names: set[str] = set()
    for volume in value:
        name = volume.get("name") if isinstance(volume, Mapping) else None
        if not isinstance(name, str) or name in OUR_VOLUMES or name in names:
            raise ValueError(f"pod: a volume needs a name of its own, other than {', '.join(sorted(OUR_VOLUMES))}.")
        kinds = [kind for kind in volume if kind != "name"]
        if len(kinds) != 1 or kinds[0] not in _VOLUME_KINDS:
            raise ValueError(f"pod: the volume {name} must be one of {', '.join(_VOLUME_KINDS)}.")
        if _names_ours(volume):
            raise ValueError(f"pod: the volume {name} belongs to a session.")
        names.add(name)
    return names


def _names_ours(volume: Mapping[str, Any]) -> bool:
    """Whether a volume is a session's own claim or Secret."""
    for kind, key in (("persistentVolumeClaim", "claimName"), ("secret", "secretName")):
        source = volume.get(kind)
        if isinstance(source, Mapping) and str(source.get(key, "")).startswith("kandev-"):
            return True
    return False


def _check_mounts(value: object, names: set[str]) -> None:
    if not isinstance(value, list):
        raise ValueError("pod: volumeMounts must be a list.")
    for mount in value:
        if not isinstance(mount, Mapping) or mount.get("name") not in names:
            raise ValueError("pod: each of volumeMounts must name one of volumes.")
        path = mount.get("mountPath")
        if not isinstance(path, str) or not path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ValueError("pod: a mountPath must be an absolute path.")
        if mount.get("mountPropagation"):
            raise ValueError("pod: mountPropagation cannot be set.")
        # Two slashes at the beginning are a root of their own for Python, and one for the node.
        if _is_ours(PurePosixPath("/" + path.lstrip("/"))):
            raise ValueError(f"pod: nothing can be mounted at {path}.")


def _is_ours(path: PurePosixPath) -> bool:
    """Whether a mount would hide, or lie inside, a directory that sessions or the image depend on."""
    ours = [PurePosixPath(one) for one in _OUR_PATHS]
    return any(path.is_relative_to(one) or one.is_relative_to(path) for one in ours)
