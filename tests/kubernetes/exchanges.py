"""What is played against a real cluster to be recorded, and against the stand-in: short lives of Pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from tests.kubernetes.transcript import Json, Transcript

LABEL: Final = "kandev-recording"
IMAGE: Final = "kandev-agentctl:test"
PORT: Final = 8700
PYTHON: Final = "python3"
MERGE: Final = "application/merge-patch+json"
_SERVER: Final = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
host, port = sys.argv[1].split(":")
print("up", flush=True)
http.server.HTTPServer((host, int(port)), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
_WAIT: Final = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
_FILL_MEMORY: Final = "import time; time.sleep(3); a = b'x' * (200 << 20); time.sleep(600)"


class Cluster(Protocol):
    """A cluster, with what can be done to it beside its API."""

    storage_class: str

    def kill(self, pod: str) -> None:
        """Kill the first process of a Pod with SIGKILL."""
        ...

    def set_quota(self, name: str, hard: dict[str, int]) -> None:
        """Limit the objects of the namespace, by resource."""
        ...

    def remove_quota(self, name: str) -> None:
        """Remove the limit."""
        ...


Exchange = Callable[[Transcript, Cluster], Awaitable[None]]


def pod(name: str, command: Sequence[str], **more: Any) -> Json:
    """Return the description of a Pod with one container."""
    container: Json = {"name": "agentctl", "image": IMAGE, "imagePullPolicy": "Never", "command": list(command)}
    container |= more.pop("container", {})
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: name}},
        "spec": spec | more,
    }


def claim(name: str, storage_class: str) -> Json:
    """Return the description of a claim."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": storage_class,
    }
    metadata = {"name": name, "labels": {LABEL: name}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def secret(name: str) -> Json:
    """Return the description of a Secret."""
    metadata = {"name": name, "labels": {LABEL: name}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"word": "d2FscnVz"}}


def _is_ready(found: Json) -> bool:
    statuses = found.get("status", {}).get("containerStatuses") or [{"ready": False}]
    return all(one["ready"] for one in statuses)


def _phase(*phases: str) -> Callable[[Json], bool]:
    return lambda found: found.get("status", {}).get("phase") in phases


def _is_waiting_for(*reasons: str) -> Callable[[Json], bool]:
    def is_so(found: Json) -> bool:
        statuses = found.get("status", {}).get("containerStatuses") or ()
        return any((one["state"].get("waiting") or {}).get("reason") in reasons for one in statuses)

    return is_so


def _has_ended(events: list[Json]) -> bool:
    return any(_phase("Failed", "Succeeded")(one["object"]) for one in events)


def _is_gone(events: list[Json]) -> bool:
    return any(one["type"] == "DELETED" for one in events)


async def graceful_life(api: Transcript, cluster: Cluster) -> None:
    """A Pod is created, becomes ready, is read, reached and deleted gracefully."""
    name = "graceful"
    wanted = pod(
        name,
        [PYTHON, "-c", _SERVER],
        container={
            "args": [f"0.0.0.0:{PORT}"],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
            "resources": {"requests": {"memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        },
    )

    async def live() -> None:
        await api.request("POST", "pods", wanted)
        await api.until(name, _is_ready)
        await api.request("POST", "pods", wanted)
        await api.request("GET", f"pods/{name}")
        await api.request("GET", "pods", labelSelector=f"{LABEL}={name}")
        await api.request("GET", "pods", labelSelector=f"{LABEL} in ({name},other),!nothing")
        await api.request("GET", "pods", labelSelector=f"{LABEL}=nobody")
        await api.request("GET", f"pods/{name}/log", tailLines="5")
        await api.tunnel(name, PORT, b"HEAD / HTTP/1.0\r\n\r\n")
        await api.tunnel(name, PORT + 1, b"HEAD / HTTP/1.0\r\n\r\n")
        precondition = {"preconditions": {"uid": "11111111-1111-4111-8111-111111111111"}}
        await api.request("DELETE", f"pods/{name}", precondition)
        await api.request("DELETE", f"pods/{name}")

    await api.watch_until(_is_gone, live, f"{LABEL}={name}")
    await api.request("GET", f"pods/{name}")
    await api.request("DELETE", f"pods/{name}")


async def name_conflict(api: Transcript, cluster: Cluster) -> None:
    """The name of a Pod that is being deleted stays taken until its container has ended."""
    name = "conflict"
    wanted = pod(name, ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])

    async def live() -> None:
        await api.request("POST", "pods", wanted)
        await api.until_up(name)
        await api.request("DELETE", f"pods/{name}", {"gracePeriodSeconds": 4})
        await api.request("POST", "pods", wanted)
        await api.request("GET", f"pods/{name}")

    await api.watch_until(_is_gone, live, f"{LABEL}={name}")


async def killed(api: Transcript, cluster: Cluster) -> None:
    """The first process of a Pod is killed with -9; the Pod fails and its object stays."""
    name = "killed"

    async def live() -> None:
        await api.request("POST", "pods", pod(name, ["sh", "-c", _WAIT]))
        await api.until_up(name)
        cluster.kill(name)

    await api.watch_until(_has_ended, live, f"{LABEL}={name}")
    await api.request("GET", f"pods/{name}")
    await api.request("DELETE", f"pods/{name}")
    await api.request("GET", f"pods/{name}")


async def ends(api: Transcript, cluster: Cluster) -> None:
    """Containers end by themselves: with 0, with another code, and in an init container."""
    lives = {"ended-well": "sleep 2; exit 0", "ended-badly": "sleep 2; exit 7"}
    for name, script in lives.items():

        async def live(name: str = name, script: str = script) -> None:
            await api.request("POST", "pods", pod(name, ["sh", "-c", script]))

        await api.watch_until(_has_ended, live, f"{LABEL}={name}")
    failing = {"name": "prepare", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", "exit 5"]}
    wanted = pod("ended-early", ["sh", "-c", _WAIT], initContainers=[failing])
    await api.request("POST", "pods", wanted)
    await api.until("ended-early", _phase("Failed"))
    await api.request("GET", "pods/ended-early")


async def kept_by_finalizer(api: Transcript, cluster: Cluster) -> None:
    """A finalizer keeps a Pod's object, also over a forced deletion, until somebody removes it."""
    name = "finalizer"
    wanted = pod(name, ["sh", "-c", _WAIT])
    wanted["metadata"] |= {"finalizers": ["kandev/end-seen"], "annotations": {"kandev.launch": "one"}}

    async def live() -> None:
        await api.request("POST", "pods", wanted)
        found = await api.until_up(name)
        version = found["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version, "annotations": {"kandev.launch": "two"}}}
        await api.request("PATCH", f"pods/{name}", change, content_type=MERGE)
        await api.request("PATCH", f"pods/{name}", change, content_type=MERGE)
        await api.request("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})
        await api.until(name, _phase("Failed", "Succeeded"))
        await api.request("GET", f"pods/{name}")
        await api.request("POST", "pods", wanted)
        await api.request("DELETE", f"pods/{name}")
        other = {"metadata": {"uid": "11111111-1111-4111-8111-111111111111", "finalizers": []}}
        await api.request("PATCH", f"pods/{name}", other, content_type=MERGE)
        await api.request("PATCH", f"pods/{name}", {"metadata": {"finalizers": []}}, content_type=MERGE)

    await api.watch_until(_is_gone, live, f"{LABEL}={name}")
    await api.request("PATCH", f"pods/{name}", {"metadata": {"finalizers": []}}, content_type=MERGE)


async def gracefully_with_finalizer(api: Transcript, cluster: Cluster) -> None:
    """A graceful deletion of a Pod with a finalizer shows the end of its container, and its exit code."""
    name = "finalized"
    wanted = pod(name, ["sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done"])
    wanted["metadata"]["finalizers"] = ["kandev/end-seen"]

    async def live() -> None:
        await api.request("POST", "pods", wanted)
        await api.until_up(name)
        await api.request("DELETE", f"pods/{name}")
        await api.until(name, _phase("Failed", "Succeeded"))
        await api.request("PATCH", f"pods/{name}", {"metadata": {"finalizers": []}}, content_type=MERGE)

    await api.watch_until(_is_gone, live, f"{LABEL}={name}")


async def marked_claim(api: Transcript, cluster: Cluster) -> None:
    """A claim's annotations say who may write to its volume; a change from an old version is refused."""
    await api.request("POST", "persistentvolumeclaims", claim("marked", cluster.storage_class))
    await api.until("marked", _phase("Bound"), "persistentvolumeclaims")
    found = await api.request("GET", "persistentvolumeclaims/marked")
    change = {"metadata": {"resourceVersion": "1", "annotations": {"kandev.pod": "somebody"}}}
    await api.request("PATCH", "persistentvolumeclaims/marked", change, content_type=MERGE)
    change = {"metadata": {"annotations": {"kandev.pod": "somebody"}, "labels": {"kandev.execution": "one"}}}
    await api.request("PATCH", "persistentvolumeclaims/marked", change, content_type=MERGE)
    change = {"metadata": {"annotations": {"kandev.pod": None}}}
    await api.request("PATCH", "persistentvolumeclaims/marked", change, content_type=MERGE)
    wrong = {"preconditions": {"uid": "11111111-1111-4111-8111-111111111111"}}
    await api.request("DELETE", "persistentvolumeclaims/marked", wrong)
    await api.request("DELETE", "persistentvolumeclaims/marked", {"preconditions": {"uid": found["metadata"]["uid"]}})


async def out_of_memory(api: Transcript, cluster: Cluster) -> None:
    """A container uses more memory than its limit."""
    limit = {"resources": {"limits": {"memory": "64Mi"}}}

    async def live() -> None:
        await api.request("POST", "pods", pod("oom", [PYTHON, "-c", _FILL_MEMORY], container=limit))

    await api.watch_until(_has_ended, live, f"{LABEL}=oom")


async def image_not_pulled(api: Transcript, cluster: Cluster) -> None:
    """Images that are not there, or that no registry has."""
    absent = {"image": "localhost:1/kandev-absent:none"}
    never = pod("image-never", ["true"], container=absent)
    await api.request("POST", "pods", never)
    await api.until("image-never", _is_waiting_for("ErrImageNeverPull"))
    await api.request("GET", "pods/image-never")
    await api.request("GET", "pods/image-never/log")
    pulled = pod("image-absent", ["true"], container=absent | {"imagePullPolicy": "IfNotPresent"})
    await api.request("POST", "pods", pulled)
    await api.until("image-absent", _is_waiting_for("ImagePullBackOff"))
    await api.request("GET", "pods/image-absent")


async def unschedulable(api: Transcript, cluster: Cluster) -> None:
    """Pods that no node can have."""
    wanted = {
        "no-node": pod("no-node", ["true"], nodeSelector={"kandev-test": "nowhere"}),
        "no-memory": pod("no-memory", ["true"], container={"resources": {"requests": {"memory": "9Ti"}}}),
        "no-claim": pod(
            "no-claim",
            ["true"],
            volumes=[{"name": "work", "persistentVolumeClaim": {"claimName": "not-there"}}],
        ),
    }
    for name, one in wanted.items():
        await api.request("POST", "pods", one)
        await api.until(name, lambda found: bool(found["status"].get("conditions")))
        await api.request("GET", f"pods/{name}")
        await api.request("GET", f"pods/{name}/log")
        await api.request("DELETE", f"pods/{name}")
        await api.request("GET", f"pods/{name}")


async def claims_and_secrets(api: Transcript, cluster: Cluster) -> None:
    """A claim in use stays until its Pod is gone; a Secret goes at once."""
    mount = "/work"
    wanted = pod(
        "with-volumes",
        [
            "sh",
            "-c",
            (
                f"cat /secret/word; echo; echo kept >{mount}/file; trap 'exit 0' TERM; echo up; "
                "while :; do sleep 0.1; done"
            ),
        ],
        container={
            "volumeMounts": [
                {"name": "work", "mountPath": mount, "subPath": "workspace"},
                {"name": "secret", "mountPath": "/secret"},
            ]
        },
        volumes=[
            {"name": "work", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "secret", "secret": {"secretName": "secret"}},
        ],
    )
    await api.request("POST", "persistentvolumeclaims", claim("claim", cluster.storage_class))
    await api.request("POST", "persistentvolumeclaims", claim("claim", cluster.storage_class))
    await api.request("POST", "secrets", secret("secret"))
    await api.request("POST", "secrets", secret("secret"))
    await api.request("GET", "secrets", labelSelector=f"{LABEL}=secret")
    await api.request("POST", "pods", wanted)
    await api.until_up("with-volumes")
    await api.request("GET", "persistentvolumeclaims/claim")
    await api.request("DELETE", "persistentvolumeclaims/claim")
    await api.request("GET", "persistentvolumeclaims/claim")
    await api.request("POST", "persistentvolumeclaims", claim("claim", cluster.storage_class))
    await api.request("DELETE", "secrets/secret")
    await api.request("GET", "secrets/secret")
    await api.request("GET", "pods/with-volumes/log")
    await api.request("DELETE", "pods/with-volumes")


async def pages_of_a_list(api: Transcript, cluster: Cluster) -> None:
    """A list comes in pages."""
    for number in range(3):
        one = secret(f"page-{number}")
        one["metadata"]["labels"] = {LABEL: "page"}
        await api.request("POST", "secrets", one)
    first = await api.request("GET", "secrets", labelSelector=f"{LABEL}=page", limit="2")
    mark = first["metadata"]["continue"]
    second = {"labelSelector": f"{LABEL}=page", "limit": "2", "continue": mark}
    await api.request("GET", "secrets", **second)


async def watch_expired(api: Transcript, cluster: Cluster) -> None:
    """A watch from a version that the server no longer has."""
    await api.expired_watch()


async def quota(api: Transcript, cluster: Cluster) -> None:
    """The namespace's quota is used up."""
    cluster.set_quota("kandev-test", {"pods": 1})
    try:
        await api.request("POST", "pods", pod("first-of-quota", ["sh", "-c", _WAIT]))
        await api.request("POST", "pods", pod("second-of-quota", ["sh", "-c", _WAIT]))
    finally:
        cluster.remove_quota("kandev-test")


async def role_too_small(api: Transcript, cluster: Cluster) -> None:
    """What the Role does not allow, and the question whether it does."""
    await api.request("GET", "/api/v1/nodes")
    await api.request("GET", "/api/v1/namespaces/kube-system/secrets")
    await api.request("GET", "/api/v1/namespaces/kube-system/pods/any")
    await api.request("DELETE", "/api/v1/namespaces/kube-system/pods/any")
    await api.request("POST", "/api/v1/namespaces/not-there/pods", pod("anywhere", ["true"]))
    await api.request("GET", "pods/any")
    for verb, resource, subresource in (
        ("create", "pods", ""),
        ("watch", "pods", ""),
        ("create", "pods", "portforward"),
        ("update", "pods", ""),
        ("list", "nodes", ""),
    ):
        attributes = {"verb": verb, "resource": resource, "namespace": api.namespace}
        if subresource:
            attributes["subresource"] = subresource
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        await api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)


async def invalid_objects(api: Transcript, cluster: Cluster) -> None:
    """Objects that the API does not accept."""
    await api.request("POST", "pods", pod("Capital", ["true"]))


EXCHANGES: Final[dict[str, Exchange]] = {
    one.__name__: one
    for one in (
        graceful_life,
        name_conflict,
        killed,
        kept_by_finalizer,
        gracefully_with_finalizer,
        ends,
        marked_claim,
        out_of_memory,
        image_not_pulled,
        unschedulable,
        claims_and_secrets,
        pages_of_a_list,
        watch_expired,
        quota,
        role_too_small,
        invalid_objects,
    )
}
"""All that is recorded, by the name of its file."""
