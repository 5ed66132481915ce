"""The objects of a session in a cluster: its volume claim, the Secret with its token, and its Pod."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from django.conf import settings

from executors_app.machine.git import workspace_root
from executors_app.machine.git.worktrees import Worktree
from executors_app.machine.process import spawning
from executors_app.repositories import workspace_store
from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_fields import spec_fields
from executors_app.wire.executions import ExecutionFacts, LaunchSpec
from executors_app.wire.launch_tokens import launch_nonce
from executors_app.wire.protocol import EXECUTION_MARKER

PORT: Final = 8700
"""The port of agentctl, and of whatever serves the volume while it does not run."""
GRACE: Final = 20
"""Seconds that agentctl has to end its agent after TERM."""
SEED_DEADLINE: Final = 900
"""Seconds that a Pod waits for its seed."""
READ_DEADLINE: Final = 900
"""Seconds that a Pod for reading a volume may live."""
STATE_PATH: Final = "/var/lib/agentctl/state"
_LEFT_PATH: Final = "/left"
"""Where agentctl's state is read after its end: its own place is below a directory that only agentctl can enter."""
_HOME_PATH: Final = "/home/agent"
_VOLUME_PATH: Final = "/volume"
_TOKEN_PATH: Final = "/token"  # noqa: S105  (a directory)
_LISTEN: Final = f"[::]:{PORT}"
"""All addresses, of both kinds: a Pod may have only one of IPv4 or IPv6, or both."""
_MODULE: Final = ["python3", "-P", "-m", "executors_app.agentctl.volume"]
_AWAY: Final = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
_SCRATCH: Final = {"/tmp": "tmp", "/var/tmp": "var-tmp", "/run": "run"}  # noqa: S108 - the Pod's


def image_of(config: KubernetesConfig) -> str:
    """Return the name of the image to run."""
    return config.image or str(settings.KANDEV_AGENTCTL_IMAGE)


def worktree_of(execution: LaunchSpec | ExecutionFacts) -> Worktree:
    """Return the session's worktree as its Pod sees it."""
    return workspace_root.sandbox_worktree_path(
        workspace_root.WORKSPACE_ROOT, execution.worktree_owner, execution.worktree_branch
    )


def claim(config: KubernetesConfig, spec: LaunchSpec) -> dict[str, Any]:
    """Return the claim of the session's volume."""
    wanted: dict[str, Any] = {
        "accessModes": [config.access_mode],
        "resources": {"requests": {"storage": f"{config.storage_gb}Gi"}},
    }
    if config.storage_class:
        wanted["storageClassName"] = config.storage_class
    labels = names.execution_labels(spec.execution_id, spec.session_id, spec.task_id)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": names.claim_name(spec.worktree_owner), "labels": labels},
        "spec": wanted,
    }


def token_secret(labels: Mapping[str, str], token: str) -> dict[str, Any]:
    """Return the Secret with the token of one launch, for the Pod with these labels."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.secret_name(labels, launch_nonce(token)), "labels": dict(labels)},
        "type": "Opaque",
        "data": {names.TOKEN: base64.b64encode(token.encode()).decode()},
    }


def session_pod(config: KubernetesConfig, spec: LaunchSpec, token: str) -> dict[str, Any]:
    """Return the Pod of a session: it prepares the volume, waits for the seed, and then runs agentctl."""
    labels = names.execution_labels(spec.execution_id, spec.session_id, spec.task_id)
    pod = _pod(config, names.pod_name(spec.worktree_owner), labels, token)
    pod["metadata"]["finalizers"] = [names.FINALIZER]
    body = pod["spec"]
    body["terminationGracePeriodSeconds"] = GRACE
    body["volumes"].insert(
        0, {"name": "work", "persistentVolumeClaim": {"claimName": names.claim_name(spec.worktree_owner)}}
    )
    body["volumes"] += list(config.pod.get("volumes", []))
    body["initContainers"] = [_prepare(config, spec)]
    body["containers"] = [_agentctl(config, spec)]
    pod["metadata"]["annotations"][names.MADE_FROM] = _hash(body)
    return pod


def made_from(config: KubernetesConfig, spec: LaunchSpec) -> str:
    """Return the hash that a Pod made now would have (``names.MADE_FROM``), whatever its token."""
    return str(session_pod(config, spec, "")["metadata"]["annotations"][names.MADE_FROM])


def _hash(body: Mapping[str, Any]) -> str:
    body = {**body, "volumes": [volume for volume in body["volumes"] if volume["name"] != names.TOKEN]}
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def reading_pod(
    config: KubernetesConfig, execution: ExecutionFacts, token: str, *, state: bool, user: str
) -> dict[str, Any]:
    """Return the Pod that reads a volume of which nothing else runs: agentctl's state, or the session's work.

    ``user``: who owns its files, as ``UID:GID``: the executor may have another one by now.
    """
    labels = names.helper_labels(execution.id, execution.session_id)
    pod = _pod(config, names.pod_name(execution.worktree_owner), labels, token)
    body = pod["spec"]
    body["terminationGracePeriodSeconds"] = 1
    body["activeDeadlineSeconds"] = READ_DEADLINE
    source = {"claimName": names.claim_name(execution.worktree_owner)}
    body["volumes"].insert(0, {"name": "work", "persistentVolumeClaim": source})
    # On the disk, not in memory: a bundle may be large.
    body["volumes"][-1] = {"name": "scratch", "emptyDir": {}}
    if state:
        command = ["--state-dir", _LEFT_PATH]
        mount = {"mountPath": _LEFT_PATH, "subPath": f"state/{execution.id}"}
    else:
        command = ["--owner", execution.worktree_owner, "--branch", workspace_store.workspace_branch(execution)]
        mount = {"mountPath": str(workspace_root.WORKSPACE_ROOT), "subPath": "workspace"}
    uid, _, gid = user.partition(":")
    body["containers"] = [
        {
            **_container(config, names.AGENTCTL),
            "command": [*_MODULE, "read", *command, *_served(READ_DEADLINE)],
            "resources": _resources(256, 0.05, 256, 0.0),
            "securityContext": {**_confined(), "runAsUser": int(uid), "runAsGroup": int(gid)},
            "volumeMounts": [
                # Read-only, so that nothing of this Pod can ever write to a session's volume.
                {"name": "work", "readOnly": True, **mount},
                {"name": "token", "mountPath": _TOKEN_PATH, "readOnly": True},
                {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - the Pod's
            ],
        }
    ]
    # Readable by all users of the Pod, of which there is one. Not by fsGroup: for that, a node gives every file of the
    # session's volume to a group that may write, which spoils private keys, and takes long.
    for volume in body["volumes"]:
        if volume["name"] == names.TOKEN:
            volume["secret"]["defaultMode"] = 0o444
    return pod


def _pod(config: KubernetesConfig, name: str, labels: Mapping[str, str], token: str) -> dict[str, Any]:
    nonce = launch_nonce(token)
    annotations = {**config.pod.get("annotations", {}), names.LAUNCH: nonce}
    body: dict[str, Any] = {
        **spec_fields(config.pod),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        # A node that is not seen proves nothing: its Pods stay where they are until a person or the node decides.
        "tolerations": [
            *config.pod.get("tolerations", []),
            *({"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _AWAY),
        ],
        "volumes": [
            {"name": names.TOKEN, "secret": {"secretName": names.secret_name(labels, nonce), "defaultMode": 0o400}},
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }
    if config.service_account:
        body["serviceAccountName"] = config.service_account
    if config.node_selector:
        body["nodeSelector"] = dict(config.node_selector)
    if config.pull_secret_names:
        body["imagePullSecrets"] = [{"name": name} for name in config.pull_secret_names]
    metadata = {"name": name, "labels": dict(labels), "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def _prepare(config: KubernetesConfig, spec: LaunchSpec) -> dict[str, Any]:
    """Return the init container, which may give files to the agent's user and sees the whole volume."""
    command = [*_MODULE, "prepare", "--volume", _VOLUME_PATH]
    command += ["--execution-id", spec.execution_id, "--run-as", config.user, *_served(SEED_DEADLINE)]
    return {
        **_container(config, names.PREPARE),
        "command": command,
        "resources": _resources(256, 0.05, 256, 0.0),
        "securityContext": {**_confined("CHOWN", "DAC_OVERRIDE", "FOWNER"), "runAsUser": 0},
        "volumeMounts": [
            {"name": "work", "mountPath": _VOLUME_PATH},
            {"name": "token", "mountPath": _TOKEN_PATH, "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},  # noqa: S108 - the Pod's
        ],
    }


def _agentctl(config: KubernetesConfig, spec: LaunchSpec) -> dict[str, Any]:
    arguments = ["--workspace", str(worktree_of(spec).path)]
    arguments += ["--state-dir", STATE_PATH]
    arguments += ["--session-id", spec.session_id, "--execution-id", spec.execution_id]
    arguments += ["--token-file", f"{STATE_PATH}/token", "--seed", f"{STATE_PATH}/seed"]
    arguments += ["--root", str(workspace_root.WORKSPACE_ROOT)]
    arguments += ["--listen", _LISTEN, "--run-as", config.user]
    mounts = {
        str(workspace_root.WORKSPACE_ROOT): "workspace",
        _HOME_PATH: "home",
        STATE_PATH: f"state/{spec.execution_id}",
    }
    marks = {EXECUTION_MARKER: spec.execution_id, spawning.SESSION_VARIABLE: spec.session_id}
    return {
        **_container(config, names.AGENTCTL),
        "args": arguments,
        "env": [{"name": name, "value": value} for name, value in marks.items()],
        "workingDir": _HOME_PATH,
        "resources": _resources(config.memory_mb, config.cpu_request, config.memory_mb, config.cpus),
        # Root only to become two users: agentctl gives up the rest before it does anything else.
        "securityContext": {**_confined("SETGID", "SETPCAP", "SETUID"), "runAsUser": 0},
        "volumeMounts": [
            *({"name": "work", "mountPath": path, "subPath": part} for path, part in mounts.items()),
            *({"name": "scratch", "mountPath": path, "subPath": part} for path, part in _SCRATCH.items()),
            *config.pod.get("volumeMounts", []),
        ],
    }


def _container(config: KubernetesConfig, name: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": name,
        "image": image_of(config),
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        # Nothing that an agent writes there is ever read.
        "terminationMessagePolicy": "File",
    }
    if config.image_pull_policy:
        container["imagePullPolicy"] = config.image_pull_policy
    return container


def _confined(*capabilities: str) -> dict[str, Any]:
    """Return what every container has: it can gain no rights, and writes only to its volumes."""
    allowed: dict[str, Sequence[str]] = {"drop": ["ALL"]}
    if capabilities:
        allowed["add"] = list(capabilities)
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": allowed}


def _served(deadline: int) -> list[str]:
    return ["--token-file", f"{_TOKEN_PATH}/token", "--listen", _LISTEN, "--deadline", str(deadline)]


def _resources(memory: int, cpu: float, memory_limit: int, cpu_limit: float) -> dict[str, Any]:
    requests = {"memory": f"{memory}Mi", "cpu": f"{round(cpu * 1000)}m"}
    limits = {"memory": f"{memory_limit}Mi"}
    if cpu_limit:
        limits["cpu"] = f"{round(cpu_limit * 1000)}m"
    return {"requests": requests, "limits": limits}
