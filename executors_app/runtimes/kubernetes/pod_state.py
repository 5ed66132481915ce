"""What a Pod's object says: whether it may still run, how it ended, and why it does not start.

Only the node's own word that the container has ended is a proof of it. The phase is none: the control plane of a
cluster writes ``Failed`` for Pods of a node that was removed or is not seen, and older nodes before the container has
ended. The absence of the object is none either: anybody may remove it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Final

from executors_app.runtimes.kubernetes import names, words
from executors_app.wire.errors import LaunchFailed

ENDED: Final = "pod_ended"
OUT_OF_MEMORY: Final = "out_of_memory"
EVICTED: Final = "pod_evicted"
NEVER_RAN: Final = "pod_never_ran"
OUT_OF_SERVICE: Final = "node_out_of_service"
CONFIRMED: Final = "end_confirmed"
"""A person has recorded it on the volume claim, because no node ever will."""
END_REASONS: Final = frozenset({ENDED, OUT_OF_MEMORY, EVICTED, NEVER_RAN, OUT_OF_SERVICE, CONFIRMED})
"""How a Pod can have ended, as it is recorded on the volume claim."""

_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_IMPOSSIBLE: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_PULL_PATIENCE: Final = 20.0
"""Seconds after which a failed pull is reported; the cluster tries again by itself before that."""
_SCHEDULE_PATIENCE: Final = 60.0
"""Seconds that a Pod may wait for a node: an autoscaler may be adding one."""
_NOT_SEEN: Final = "ContainerStatusUnknown"
"""The reason with which a node reports a container whose end it has not seen."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod as the API server describes it; everything in it is checked where it is read."""

    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._metadata["name"])

    @property
    def uid(self) -> str:
        """What distinguishes it from every other Pod, also one of the same name."""
        return str(self._metadata["uid"])

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return names.labels_of(self.entry)

    @property
    def execution_id(self) -> str:
        """The execution that it runs; empty for one that only reads."""
        return self.labels.get(names.EXECUTION_LABEL, "")

    @property
    def is_reader(self) -> bool:
        """Whether it only reads a volume.

        Anybody with rights in the namespace can change labels, and nobody the containers: without the one that prepares
        a volume, none runs an agent.
        """
        prepares = (one.get("name") for one in (self.entry.get("spec") or {}).get("initContainers") or ())
        return names.HELPER_LABEL in self.labels and names.PREPARE not in prepares

    @property
    def nonce(self) -> str:
        """The nonce of its token; empty if somebody has changed it into what is none."""
        nonce = names.annotations_of(self.entry).get(names.LAUNCH)
        return nonce if names.is_nonce(nonce) else ""

    @property
    def secret(self) -> str:
        """The name of the Secret with its token; empty if it names none of its own, so that no other is removed."""
        for volume in (self.entry.get("spec") or {}).get("volumes") or ():
            if not isinstance(volume, Mapping) or volume.get("name") != names.TOKEN:
                continue
            source = volume.get("secret")
            name = source.get("secretName") if isinstance(source, Mapping) else None
            if isinstance(name, str) and names.is_secret_of(self.labels, name):
                return name
        return ""

    @property
    def made_from(self) -> str:
        """A hash of what it was made from."""
        return str(names.annotations_of(self.entry).get(names.MADE_FROM, ""))

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return str(self._status.get("phase", ""))

    @property
    def is_deleted(self) -> bool:
        """Whether somebody has asked for its deletion."""
        return bool(self._metadata.get("deletionTimestamp"))

    @property
    def is_final(self) -> bool:
        """Whether its node starts none of its containers any more; they may still run."""
        return self.is_deleted or self.phase in ("Failed", "Succeeded")

    @property
    def has_finalizer(self) -> bool:
        """Whether its object stays until we let it go."""
        return names.FINALIZER in (self._metadata.get("finalizers") or [])

    @property
    def node(self) -> str:
        """The node that it was given to; empty if none."""
        return str((self.entry.get("spec") or {}).get("nodeName") or "")

    @property
    def address(self) -> str:
        """Its address in the cluster, as written in a URL; empty if it has none yet, or one that is none."""
        try:
            address = ip_address(str(self._status.get("podIP") or ""))
        except ValueError:
            return ""
        if address.version == 6:
            return f"[{address}]"
        return str(address)

    @property
    def is_up(self) -> bool:
        """Whether agentctl's container runs, as far as is known."""
        return "running" in self._state(names.AGENTCTL)

    @property
    def waits_for_seed(self) -> bool:
        """Whether the init container runs, which receives the seed."""
        return "running" in self._state(names.PREPARE, "initContainerStatuses")

    @property
    def has_run(self) -> bool:
        """Whether agentctl's container was started for certain; it may still run."""
        return self.is_up or bool(self._container(names.AGENTCTL).get("containerID"))

    @property
    def has_started(self) -> bool:
        """Whether agentctl's container was ever started, or may have been."""
        status = self._container(names.AGENTCTL)
        if not self.node and not status:
            return False
        return bool(status.get("containerID")) or "waiting" not in self._state(names.AGENTCTL)

    def end(self) -> str:
        """Return how it has ended for certain, one of ``END_REASONS``; empty if it may still run or start."""
        ended = self._termination(names.AGENTCTL)
        if ended is not None:
            return self._how(ended)
        prepared = self._termination(names.PREPARE, "initContainerStatuses")
        if prepared is not None and prepared.get("exitCode") != 0:
            return NEVER_RAN  # with restartPolicy Never the containers after a failed one never start
        if self.is_deleted and not self.node:
            return NEVER_RAN  # no node accepts a Pod that is being deleted
        return ""

    def exit_words(self) -> str:
        """Return how agentctl's container, or else the init container, ended, for a sentence."""
        for ended in (self._termination(names.AGENTCTL), self._termination(names.PREPARE, "initContainerStatuses")):
            if ended is not None:
                return f"exit code {_whole(ended.get('exitCode'))}"
        return words.shorten(self._status.get("reason") or self.phase)

    def obstacle(self, namespace: str) -> LaunchFailed | None:
        """Return why it does not start, as an error with the fix; None while waiting is worth it."""
        age = self.age()
        for state in (self._state(names.PREPARE, "initContainerStatuses"), self._state(names.AGENTCTL)):
            waiting = state.get("waiting") or {}
            why, said = str(waiting.get("reason", "")), waiting.get("message", "")
            if why in _PULL and age > _PULL_PATIENCE:
                return words.PodImageNotPulled(
                    "The cluster cannot pull the image of this executor. Check its name, push it to a registry that "
                    "the nodes reach, or set pull_secrets.",
                    for_staff=words.shorten(f"{why}: {said}"),
                )
            if why in _IMPOSSIBLE and age > _PULL_PATIENCE:
                return words.PodRefused(
                    "A node cannot start the Pod. Check the fields of this executor's Pods.",
                    for_staff=words.shorten(f"{why}: {said}"),
                )
        return self._unscheduled(namespace, age)

    def rejection(self) -> LaunchFailed | None:
        """Return the error for a Pod that its node did not accept; None if it was not rejected."""
        if self.phase != "Failed" or self._status.get("containerStatuses"):
            return None
        said = f"{self._status.get('reason', '')}: {self._status.get('message', '')}"
        return words.PodRefused(
            "A node did not accept the Pod, although it was assigned there. Check that the node has room, and try "
            "again.",
            for_staff=words.shorten(said),
        )

    def age(self) -> float:
        """Return the seconds since it was created, by our clock."""
        try:
            created = datetime.fromisoformat(str(self._metadata.get("creationTimestamp", "")))
        except ValueError:
            return 0.0
        return (datetime.now(UTC) - created).total_seconds()

    def unscheduled_because(self) -> str:
        """Return why the scheduler has found no node for it; empty if it has, or has not said why."""
        for condition in self._status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message") or condition.get("reason") or "no reason given")
        return ""

    def pull_problem(self) -> str:
        """Return why its node could not pull its image; empty if it has not failed to."""
        for state in (self._state(names.PREPARE, "initContainerStatuses"), self._state(names.AGENTCTL)):
            waiting = state.get("waiting") or {}
            why = str(waiting.get("reason", ""))
            if why in _PULL:
                return f"{why}: {waiting.get('message', '')}"
        return ""

    def _unscheduled(self, namespace: str, age: float) -> LaunchFailed | None:
        said = self.unscheduled_because()
        if not said or age <= _SCHEDULE_PATIENCE:
            return None
        if "unbound" in said:
            claim = names.claim_name(names.owner_of_pod(self.name))
            return words.PodVolumeNotBound(
                "The cluster makes no volume for this session. Check storage_class of this executor. A claim keeps "
                f"its class: after a change, and only if {claim} is Pending, which holds nothing, run kubectl "
                f"delete pvc {claim} --namespace {namespace}",
                for_staff=words.shorten(said),
            )
        if "PersistentVolumeClaim" in said or "volume" in said:
            return words.PodVolumeNotBound(
                f"The cluster has no volume for this session. Check storage_class of this executor and the volume "
                f"claims of the namespace {namespace}.",
                for_staff=words.shorten(said),
            )
        return words.PodUnschedulable(
            "No node can take the Pod of this session. Add a node, end other sessions, or lower memory_mb and "
            "cpu_request, or change node_selector of this executor.",
            for_staff=words.shorten(said),
        )

    def _termination(self, name: str, kind: str = "containerStatuses") -> Mapping[str, Any] | None:
        """Return how the node says that a container has ended; None if it does not say so.

        A node that no longer finds a container reports its end as the last state of one that waits. That counts once
        the Pod is deleted or its phase is final: before, the node would start the container again, despite
        ``restartPolicy: Never``. A container that it does find, in a state that its engine cannot tell, may run.
        """
        status = self._container(name, kind)
        state = status.get("state") or {}
        if "running" in state:
            return None
        ended = state.get("terminated")
        if ended is None and self.is_final:
            ended = (status.get("lastState") or {}).get("terminated")
        if ended is not None and ended.get("reason") == _NOT_SEEN and status.get("containerID"):
            return None
        return ended

    def _how(self, ended: Mapping[str, Any]) -> str:
        if ended.get("reason") == "OOMKilled":
            return OUT_OF_MEMORY
        if self._status.get("reason") == "Evicted":
            return EVICTED
        return ENDED

    @property
    def _metadata(self) -> Mapping[str, Any]:
        return self.entry["metadata"]  # type: ignore[no-any-return]

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.entry.get("status") or {}

    def _container(self, name: str, kind: str = "containerStatuses") -> Mapping[str, Any]:
        for status in self._status.get(kind) or ():
            if status.get("name") == name:
                return status  # type: ignore[no-any-return]
        return {}

    def _state(self, name: str, kind: str = "containerStatuses") -> Mapping[str, Any]:
        return self._container(name, kind).get("state") or {}


def is_owned(pod: Pod, execution_id: str, session_id: str) -> bool:
    """Whether a Pod belongs to that execution and was made by this deployment."""
    owns = pod.labels.get(names.EXECUTION_LABEL) == execution_id and pod.labels.get(names.SESSION_LABEL) == session_id
    return owns and names.is_ours(pod.entry)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else -1
