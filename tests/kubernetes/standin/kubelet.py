"""The scheduler and the kubelets of the stand-in: Pods become containers, and their ends become statuses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import random
import shutil
import signal
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.kubernetes.standin import container
from tests.kubernetes.standin.container import Container, Mount
from tests.kubernetes.standin.store import Object, Store, timestamp
from tests.waiting import PATIENCE

IMAGES: Final = ("kandev-agentctl:test",)
"""The images that can be pulled."""
NODES: Final = ("node1", "node2")
_NO_NODE: Final = "0/2 nodes are available: 2"
STORAGE_CLASS: Final = "kandev-test"
_BOUND: Final = {
    "pv.kubernetes.io/bind-completed": "yes",
    "pv.kubernetes.io/bound-by-controller": "yes",
    "volume.beta.kubernetes.io/storage-provisioner": "kubernetes.io/host-path",
}
_PROBE_PERIOD: Final = 0.1
_KILLED: Final = 137
_RESERVED_PORT: Final = 8699
_FORGOTTEN: Final = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was deleted.  The container used to be Running",
    "startedAt": None,
    "finishedAt": None,
}
"""How a kubelet of Kubernetes 1.20 often reports the end of a deleted Pod's container: it no longer finds it."""
_LIMITS_PERIOD: Final = 0.3


@dataclass
class RunningPod:
    """What a node knows of a Pod: it may outlive the Pod's object."""

    name: str
    uid: str
    address: str
    directory: Path
    container: Container | None = None
    """The container that runs now."""
    work: asyncio.Task[None] | None = None
    reason: str = ""
    """Why its container ends, if not by itself: ``OOMKilled``."""
    evicted: str = ""
    """The message of its eviction."""
    is_deleted: bool = False
    """The kubelet was told to end it."""
    tunnels: set[Any] = field(default_factory=set)


class PodNetwork:
    """Addresses of the loopback that no other stand-in of this machine uses."""

    def __init__(self) -> None:
        self._reservation = socket.socket()
        while True:
            self._prefix = f"127.{random.randrange(16, 255)}.{random.randrange(256)}"
            with contextlib.suppress(OSError):
                self._reservation.bind((self.address(254), _RESERVED_PORT))
                return

    def address(self, number: int) -> str:
        """Return the address of a Pod by its number, from 1."""
        assert number < 255, "a stand-in has addresses for 254 Pods"
        return f"{self._prefix}.{number}"

    def close(self) -> None:
        """Give the addresses back."""
        self._reservation.close()


class Nodes:
    """All nodes with their Pods."""

    def __init__(self, store: Store, home: Path, *, forgets_ends: bool = False, cleanup_seconds: float = 0.05):
        self.store, self.home = store, home
        self.forgets_ends, self.cleanup_seconds = forgets_ends, cleanup_seconds
        self.unreachable: set[str] = set()
        """Nodes that a partition separates from the API."""
        self.pods: dict[str, RunningPod] = {}
        """By uid; also Pods whose object is gone."""
        self._addresses = 0
        self._network = PodNetwork()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what the API tells

    def run(self, pod: Object) -> None:
        """Schedule and run a Pod that was created."""
        metadata = pod["metadata"]
        self._addresses += 1
        address = self._network.address(self._addresses)
        known = RunningPod(metadata["name"], metadata["uid"], address, self.home / "pods" / metadata["uid"])
        self.pods[known.uid] = known
        known.work = asyncio.create_task(self._live(known, metadata["namespace"]))

    def end(self, pod: Object, grace: float) -> None:
        """End a Pod whose deletion was asked for, gracefully; an unreachable node hears nothing of it."""
        known = self.pods.get(pod["metadata"]["uid"])
        if known is not None and not known.is_deleted and pod["spec"].get("nodeName") not in self.unreachable:
            known.is_deleted = True
            self.start_task(self._terminate(known, grace))

    def reach(self, node: str) -> None:
        """Heal a partition: the kubelet ends what was deleted meanwhile, and reports."""
        self.unreachable.discard(node)
        for known in list(self.pods.values()):
            pod = self._object(known)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                known.is_deleted = True
                self.start_task(self._terminate(known, 1))

    async def evict(self, uid: str, message: str) -> None:
        """Evict a Pod for lack of a node's resources."""
        known = self.pods[uid]
        known.evicted = message
        if known.container is not None:
            known.container.send_signal(signal.SIGKILL)
        await self._ended(known)

    async def kill(self, uid: str, reason: str = "") -> None:
        """Kill the first process of a Pod's container, and wait until its end is reported."""
        known = self.pods[uid]
        known.reason = reason
        if known.container is not None:
            known.container.send_signal(signal.SIGKILL)
        await self._ended(known)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that ends with the cluster at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every container."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for known in list(self.pods.values()):
            if known.work is not None:
                known.work.cancel()
                await asyncio.gather(known.work, return_exceptions=True)
            if known.container is not None:
                known.container.send_signal(signal.SIGKILL)
                await known.container.wait()
        self._network.close()

    def volume(self, namespace: str, claim: str) -> Path:
        """Return the directory of a claim's volume."""
        uid = str(self.store.get("persistentvolumeclaims", namespace, claim)["metadata"]["uid"])
        return self.home / "volumes" / uid

    # -- the life of a Pod

    async def _live(self, known: RunningPod, namespace: str) -> None:
        pod = await self._schedule(known, namespace)
        if pod is None:
            return
        await self._report(known, phase="Pending", conditions=_conditions(pod, False), containers=_waiting(pod))
        if not await self._pull(known, pod):
            return
        mounts = self._mounts(known, pod)
        for description in pod["spec"].get("initContainers", ()):
            started = timestamp()
            running = await self._start(known, description, mounts, pod)
            await self._report_init(known, description, {"running": {"startedAt": started}})
            code = await self._wait(known, running)
            await self._report_init(known, description, {"terminated": _terminated(code, started, known.reason)})
            if code != 0:
                await self._report_end(known, "Failed")
                return
        await self._run_main(known, pod, mounts)

    async def _schedule(self, known: RunningPod, namespace: str) -> Object | None:
        """Place the Pod on a node as soon as that is possible; None if it was deleted before."""
        said = ""
        while (pod := self._object(known)) is not None:
            problem = self._unschedulable(pod, namespace)
            if not problem:
                break
            if problem != said:
                said = problem
                await self._report(
                    known, phase="Pending", conditions=[_condition("PodScheduled", False, "Unschedulable", problem)]
                )
                self.tell(pod, "FailedScheduling", problem)
            await self.store.wait(0.5)
        if pod is None:
            return None
        pod["spec"]["nodeName"] = self._place(pod)
        pod["status"]["conditions"] = [_condition("PodScheduled", True)]
        self.store.update("pods", pod)
        return pod

    def _unschedulable(self, pod: Object, namespace: str) -> str:
        """Return why no node can have the Pod now, as the scheduler says it."""
        for claim in _claims(pod):
            found = self.store.find("persistentvolumeclaims", namespace, claim)
            if found is None:
                return f'{_NO_NODE} persistentvolumeclaim "{claim}" not found.'
            if "deletionTimestamp" in found["metadata"]:
                return f'{_NO_NODE} persistentvolumeclaim "{claim}" is being deleted.'
            if found["status"]["phase"] != "Bound":
                return f"{_NO_NODE} pod has unbound immediate PersistentVolumeClaims."
        wanted = pod["spec"].get("nodeSelector") or {}
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": wanted.get("kubernetes.io/hostname")}
        if labels["kubernetes.io/hostname"] not in (None, *NODES):
            return f"{_NO_NODE} node(s) didn't match Pod's node affinity."
        if any(labels.get(name) != value for name, value in wanted.items()):
            return f"{_NO_NODE} node(s) didn't match Pod's node affinity."
        if any(_requests_too_much(one) for one in pod["spec"]["containers"]):
            return f"{_NO_NODE} Insufficient memory."
        return ""

    def _place(self, pod: Object) -> str:
        selected = (pod["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname")
        reachable = [name for name in NODES if name not in self.unreachable]
        return str(selected or reachable[0])

    def bind(self, claim: Object) -> None:
        """Make the volume of a claim, if its storage class is known."""
        found = self.store.find("persistentvolumeclaims", claim["metadata"]["namespace"], claim["metadata"]["name"])
        if found is None or found["spec"].get("storageClassName", STORAGE_CLASS) != STORAGE_CLASS:
            return
        uid = found["metadata"]["uid"]
        (self.home / "volumes" / uid).mkdir(parents=True, exist_ok=True)
        found["spec"]["volumeName"] = f"pvc-{uid}"
        found["metadata"].setdefault("annotations", {}).update(_BOUND)
        capacity = found["spec"]["resources"]["requests"]
        found["status"] = {"phase": "Bound", "accessModes": found["spec"]["accessModes"], "capacity": capacity}
        self.store.update("persistentvolumeclaims", found)

    async def _pull(self, known: RunningPod, pod: Object) -> bool:
        """Pull the image; the kubelet tries again for ever, which is not played here."""
        for description in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            image = description["image"]
            if image in IMAGES:
                continue
            for reason, message in _pull_problems(description):
                self.tell(pod, "Failed", message)
                await self._report(known, containers=_waiting(pod, {image: (reason, message)}))
            return False
        return True

    async def _run_main(self, known: RunningPod, pod: Object, mounts: Mapping[str, Mount]) -> None:
        (description,) = pod["spec"]["containers"]
        started = timestamp()
        running = await self._start(known, description, mounts, pod)
        state = {"running": {"startedAt": started}}
        probing = None
        if "readinessProbe" not in description:
            await self._report_running(known, description, state, is_ready=True)
        else:
            await self._report_running(known, description, state, is_ready=False)
            probing = asyncio.create_task(self._probe(known, description, state))
        limits = asyncio.create_task(self._enforce_limits(known, description, pod))
        code = await self._wait(known, running)
        limits.cancel()
        if probing is not None:
            probing.cancel()
        for tunnel in list(known.tunnels):
            await tunnel.close()
        await self._report_end(known, "Succeeded" if code == 0 else "Failed", description, started, code)

    async def _start(
        self, known: RunningPod, description: Object, mounts: Mapping[str, Mount], pod: Object
    ) -> Container | None:
        """Start a container; None if the Pod was deleted before."""
        chosen = [_mounted(one, mounts) for one in description.get("volumeMounts", ())]
        text = _with_address(description, known.address)
        env = self._environment(known, description, pod)
        log = known.directory / f"{description['name']}.log"
        if known.is_deleted:
            return None
        known.container = await container.start(known.directory / "root", text, chosen, env, log)
        return known.container

    async def _wait(self, known: RunningPod, running: Container | None) -> int:
        """Wait for the end of a container; return its exit code."""
        if running is None:
            return _KILLED
        code = await running.wait()
        known.container = None
        return code

    async def _probe(self, known: RunningPod, description: Object, state: Object) -> None:
        port = int(description["readinessProbe"].get("tcpSocket", {}).get("port", 8700))
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(known.address, port)
                writer.close()
                break
            await asyncio.sleep(_PROBE_PERIOD)
        await self._report_running(known, description, state, is_ready=True)

    async def _enforce_limits(self, known: RunningPod, description: Object, pod: Object) -> None:
        """Kill the container if it uses more memory, or evict the Pod if it uses more disk, than it may."""
        memory = _bytes(description.get("resources", {}).get("limits", {}).get("memory", ""))
        disks = {
            one["name"]: one["emptyDir"]["sizeLimit"]
            for one in pod["spec"].get("volumes") or ()
            if one.get("emptyDir", {}).get("sizeLimit") and one["emptyDir"].get("medium") != "Memory"
        }
        while known.container is not None:
            if memory and known.container.memory() > memory:
                known.reason = "OOMKilled"
                known.container.send_signal(signal.SIGKILL)
                return
            for name, limit in disks.items():
                if _disk_usage(known.directory / "volumes" / name) > _bytes(limit):
                    known.evicted = f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
                    known.container.send_signal(signal.SIGKILL)
                    return
            await asyncio.sleep(_LIMITS_PERIOD)

    async def _terminate(self, known: RunningPod, grace: float) -> None:
        """End the containers of a deleted Pod, and remove its object."""
        if known.container is not None:
            known.container.send_signal(signal.SIGTERM)
        if known.work is not None:
            done, _ = await asyncio.wait([known.work], timeout=grace)
            if not done and known.container is not None:
                known.container.send_signal(signal.SIGKILL)
                await asyncio.wait([known.work], timeout=PATIENCE)
            known.work.cancel()
        await asyncio.sleep(self.cleanup_seconds)
        pod = self._object(known)
        if pod is not None:
            pod["metadata"]["deletionGracePeriodSeconds"] = 0
            self.store.update("pods", pod)
            if not pod["metadata"].get("finalizers"):
                self.store.remove("pods", pod)
        self.forget(known.uid)

    def forget(self, uid: str) -> None:
        """Remove what a node has of a Pod that ended."""
        known = self.pods.pop(uid, None)
        if known is not None:
            shutil.rmtree(known.directory, ignore_errors=True)

    async def _ended(self, known: RunningPod) -> None:
        if known.work is not None:
            await asyncio.wait([known.work], timeout=PATIENCE)

    # -- statuses

    def _object(self, known: RunningPod) -> Object | None:
        """Return the Pod's object, unless that is gone or another one has its name."""
        for pod in self.store.items("pods"):
            if pod["metadata"]["uid"] == known.uid:
                return pod
        return None

    async def _report(self, known: RunningPod, **changes: Any) -> None:
        """Write a status; a node that is unreachable waits until it can, and a Pod without an object has none."""
        pod = self._object(known)
        while pod is not None and pod["spec"].get("nodeName") in self.unreachable:
            await self.store.wait(0.2)
            pod = self._object(known)
        if pod is None:
            return
        status = pod["status"]
        containers, inits = changes.pop("containers", None), changes.pop("inits", None)
        status |= changes
        if pod["spec"].get("nodeName"):
            status.setdefault("startTime", timestamp())
            status.setdefault("hostIP", "127.0.0.1")
        if containers is not None:
            status["containerStatuses"] = containers
        if inits is not None:
            status["initContainerStatuses"] = inits
        self.store.update("pods", pod)

    async def _report_init(self, known: RunningPod, description: Object, state: Object) -> None:
        pod = self._object(known)
        if pod is None:
            return
        is_ready = state.get("terminated", {}).get("exitCode") == 0
        statuses = copy.deepcopy(pod["status"].get("initContainerStatuses") or _waiting_inits(pod))
        for index, status in enumerate(statuses):
            if status["name"] == description["name"]:
                statuses[index] = _container_status(description, state, is_ready=is_ready)
        await self._report(known, inits=statuses, podIP=known.address, podIPs=[{"ip": known.address}])

    async def _report_running(self, known: RunningPod, description: Object, state: Object, *, is_ready: bool) -> None:
        pod = self._object(known)
        if pod is None:
            return
        status = _container_status(description, state, is_ready=is_ready)
        await self._report(
            known,
            phase="Running",
            podIP=known.address,
            podIPs=[{"ip": known.address}],
            conditions=_conditions(pod, is_ready, is_initialized=True),
            containers=[status],
        )

    async def _report_end(
        self,
        known: RunningPod,
        phase: str,
        description: Object | None = None,
        started: str = "",
        code: int = 0,
    ) -> None:
        pod = self._object(known)
        if pod is None:
            return
        conditions = _conditions(pod, False, is_initialized=description is not None)
        changes: dict[str, Any] = {"phase": phase, "conditions": conditions}
        if known.evicted:
            changes |= {"phase": "Failed", "reason": "Evicted", "message": known.evicted}
            self.tell(pod, "Evicted", known.evicted)
        if description is not None:
            state = {"terminated": _terminated(code, started, known.reason)}
            changes["containers"] = [_container_status(description, state, is_ready=False)]
            if self.forgets_ends and "deletionTimestamp" in pod["metadata"]:
                waiting = {"waiting": {"reason": "ContainerCreating"}}
                status = _container_status(description, waiting, is_ready=False)
                changes |= {"phase": "Failed", "containers": [status | {"lastState": {"terminated": _FORGOTTEN}}]}
        await self._report(known, **changes)

    def tell(self, pod: Object, reason: str, message: str) -> None:
        """Record an event about a Pod."""
        metadata = pod["metadata"]
        number = self.store.version
        event = {
            "metadata": {"name": f"{metadata['name']}.{number:x}"},
            "involvedObject": {
                "kind": "Pod",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "apiVersion": "v1",
            },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "count": 1,
            "firstTimestamp": timestamp(),
            "lastTimestamp": timestamp(),
        }
        self.store.create("events", metadata["namespace"], event)

    # -- volumes and variables

    def _mounts(self, known: RunningPod, pod: Object) -> dict[str, Mount]:
        """Return the directory of each volume of a Pod."""
        mounts = {}
        namespace = pod["metadata"]["namespace"]
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        for volume in pod["spec"].get("volumes", ()):
            name = volume["name"]
            place = known.directory / "volumes" / name
            if "persistentVolumeClaim" in volume:
                place = self.volume(namespace, volume["persistentVolumeClaim"]["claimName"])
            place.mkdir(parents=True, exist_ok=True)
            if "secret" in volume:
                self._write_secret(namespace, volume["secret"], place)
            elif "emptyDir" in volume:
                place.chmod(0o1777)
            if group is not None and "persistentVolumeClaim" not in volume:
                _give_to_group(place, group)
            mounts[name] = Mount(place, "", read_only="secret" in volume)
        known.directory.mkdir(parents=True, exist_ok=True)
        return mounts

    def _write_secret(self, namespace: str, source: Object, place: Path) -> None:
        data = self.store.get("secrets", namespace, source["secretName"]).get("data", {})
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            file = place / item["path"]
            file.write_bytes(base64.b64decode(data[item["key"]]))
            file.chmod(item.get("mode", source.get("defaultMode", 0o644)))

    def _environment(self, known: RunningPod, description: Object, pod: Object) -> dict[str, str]:
        values = {"HOSTNAME": known.name}
        for entry in description.get("env", ()):
            values[entry["name"]] = entry.get("value", "") or self._value_from(known, entry.get("valueFrom", {}), pod)
        return values

    def _value_from(self, known: RunningPod, source: Object, pod: Object) -> str:
        if "secretKeyRef" in source:
            wanted = source["secretKeyRef"]
            data = self.store.get("secrets", pod["metadata"]["namespace"], wanted["name"])["data"]
            return base64.b64decode(data[wanted["key"]]).decode()
        path = source.get("fieldRef", {}).get("fieldPath", "")
        if path == "status.podIP":
            return known.address
        values = {"metadata.name": known.name, "metadata.uid": known.uid, "spec.nodeName": pod["spec"].get("nodeName")}
        return str(values.get(path) or "")


def _give_to_group(place: Path, group: int) -> None:
    for path in (place, *place.rglob("*")):
        if not path.is_symlink():
            shutil.chown(path, group=group)
            path.chmod(path.stat().st_mode | 0o060)


def _bytes(quantity: str) -> int:
    """Return a quantity such as 64Mi in bytes; 0 if there is none."""
    for unit, shift in (("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)):
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) << shift
    return int(quantity or 0)


def _disk_usage(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def _claims(pod: Object) -> list[str]:
    """Return the names of the claims that a Pod uses."""
    volumes = pod["spec"].get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def _requests_too_much(description: Object) -> bool:
    return _bytes(description.get("resources", {}).get("requests", {}).get("memory", "")) > 1 << 40


def _mounted(wanted: Object, mounts: Mapping[str, Mount]) -> Mount:
    volume = mounts[wanted["name"]]
    place = volume.source / wanted.get("subPath", "")
    if not place.exists():
        place.mkdir(parents=True)
        place.chmod(volume.source.stat().st_mode)  # as a kubelet does
    return Mount(place, wanted["mountPath"], wanted.get("readOnly", False) or volume.read_only)


def _with_address(description: Object, address: str) -> Object:
    """Return a container that listens on its Pod's address: here all Pods share the machine's network."""
    changed = dict(description)
    for name in ("command", "args"):
        for everywhere in ("[::]:", "0.0.0.0:"):
            if name in description:
                changed[name] = [word.replace(everywhere, f"{address}:") for word in changed[name]]
    return changed


def _pull_problems(description: Object) -> list[tuple[str, str]]:
    """Return the reasons and messages, in order, of an image that cannot be pulled."""
    image = description["image"]
    if description.get("imagePullPolicy") == "Never":
        return [("ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never')]
    repository, _, tag = image.rpartition(":")
    failure = (
        f'rpc error: code = Unknown desc = failed to pull and unpack image "docker.io/{repository}:{tag}": not found'
    )
    return [("ErrImagePull", failure), ("ImagePullBackOff", f'Back-off pulling image "{image}"')]


def _condition(kind: str, is_true: bool, reason: str = "", message: str = "") -> Object:
    made = {"type": kind, "status": "True" if is_true else "False", "lastProbeTime": None}
    made["lastTransitionTime"] = timestamp()
    if reason:
        made |= {"reason": reason, "message": message}
    return made


def _conditions(pod: Object, is_ready: bool, *, is_initialized: bool = False) -> list[Object]:
    has_inits = bool(pod["spec"].get("initContainers"))
    names = ", ".join(one["name"] for one in pod["spec"]["containers"])
    unready = "" if is_ready else "ContainersNotReady"
    message = "" if is_ready else f"containers with unready status: [{names}]"
    return [
        _condition("Initialized", is_initialized or not has_inits),
        _condition("Ready", is_ready, unready, message),
        _condition("ContainersReady", is_ready, unready, message),
        _condition("PodScheduled", True),
    ]


def _waiting(pod: Object, problems: Mapping[str, tuple[str, str]] = {}) -> list[Object]:
    """Return the statuses of containers that have not started."""
    inits = bool(pod["spec"].get("initContainers"))
    statuses = []
    for description in pod["spec"]["containers"]:
        waiting = {"reason": "PodInitializing" if inits else "ContainerCreating"}
        if description["image"] in problems:
            reason, message = problems[description["image"]]
            waiting = {"reason": reason, "message": message}
        statuses.append(_container_status(description, {"waiting": waiting}, is_ready=False))
    return statuses


def _waiting_inits(pod: Object) -> list[Object]:
    state = {"waiting": {"reason": "PodInitializing"}}
    return [_container_status(one, dict(state), is_ready=False) for one in pod["spec"].get("initContainers", ())]


def _container_status(description: Object, state: Object, *, is_ready: bool) -> Object:
    started = {} if "waiting" in state else {"containerID": "docker://stand-in"}
    return started | {
        "name": description["name"],
        "image": description["image"],
        "imageID": "" if "waiting" in state else "docker://sha256:stand-in",
        "ready": is_ready,
        "started": "running" in state,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }


def _terminated(code: int, started: str, reason: str) -> Object:
    usual = "Completed" if code == 0 else "Error"
    return {
        "exitCode": code,
        "reason": reason or usual,
        "startedAt": started,
        "finishedAt": timestamp(),
        "containerID": "docker://stand-in",
    }
