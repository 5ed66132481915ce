"""The stand-in as tests use it: a cluster on a thread of its own, and what can happen to one."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.kubernetes.standin.api import NAMESPACE, TOKEN, ApiServer, Quota
from tests.kubernetes.standin.kubelet import STORAGE_CLASS, RunningPod
from tests.kubernetes.standin.store import Object
from tests.waiting import PATIENCE

T = TypeVar("T")


class StandIn:
    """The cluster, with access to its nodes for tests."""

    server: ApiServer

    def __init__(self, *, forgets_ends: bool = False, cleanup_seconds: float = 0.05) -> None:
        self._forgets_ends = forgets_ends
        """Whether its kubelets no longer find the containers of deleted Pods, as those of Kubernetes 1.20 often do."""
        self._cleanup_seconds = cleanup_seconds
        """Between the end of a deleted Pod's container and the removal of its object."""
        self.home = Path(tempfile.mkdtemp(prefix="kandev-standin-"))
        self._loop = asyncio.new_event_loop()

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return self.server.url

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the stand-in's event loop, from a test."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function on the stand-in's event loop, from a test."""

        async def run() -> T:
            return work()

        return self.do(run())

    @contextmanager
    def serving(self) -> Iterator[StandIn]:
        """Serve on a separate thread; end every container afterwards."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="kubernetes stand-in")
        thread.start()
        self.do(self._open())
        try:
            yield self
        finally:
            self.do(self.server.nodes.close())
            self.do(self.server.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(PATIENCE)
            self._loop.close()
            shutil.rmtree(self.home, ignore_errors=True)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Stop the API server during the block: its connections end and nobody listens. Pods continue."""
        self.do(self.server.stop())
        try:
            yield
        finally:
            self.do(self.server.start())

    def kubeconfig(self, token: str = TOKEN) -> str:
        """Return a kubeconfig for a user of the cluster."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "contexts": [
                {"name": "stand-in", "context": {"cluster": "stand-in", "user": "kandev", "namespace": NAMESPACE}}
            ],
            "clusters": [{"name": "stand-in", "cluster": {"server": self.url}}],
            "users": [{"name": "kandev", "user": {"token": token}}],
        }
        return json.dumps(config)

    def pod(self, name: str) -> Object:
        """Return a Pod's object."""
        return self.call(lambda: self.server.store.get("pods", NAMESPACE, name))

    def pods(self) -> list[Object]:
        """Return the objects of all Pods."""
        return self.call(lambda: self.server.store.items("pods", NAMESPACE))

    def running(self, name: str) -> RunningPod:
        """Return what a node knows of a Pod, whose object may be gone."""
        return next(one for one in self.server.nodes.pods.values() if one.name == name)

    def volume(self, claim: str) -> Path:
        """Return the directory of a claim's volume."""
        return self.call(lambda: self.server.nodes.volume(NAMESPACE, claim))

    def kill(self, name: str, reason: str = "") -> None:
        """Kill a Pod's first process with SIGKILL, and wait until its end is reported."""
        self.do(self.server.nodes.kill(self.running(name).uid, reason))

    def send_signal(self, name: str, number: int) -> None:
        """Send a signal to the first process of a Pod."""
        container = self.running(name).container
        assert container is not None, f"no container of {name} runs"
        container.send_signal(number)

    def evict(self, name: str, message: str) -> None:
        """Evict a Pod for lack of its node's memory or disk."""
        self.do(self.server.nodes.evict(self.running(name).uid, message))

    def separate(self, node: str) -> None:
        """Separate a node from the API: its containers run on."""
        self.call(lambda: self.server.nodes.unreachable.add(node))

    def heal(self, node: str) -> None:
        """End a partition."""
        self.call(lambda: self.server.nodes.reach(node))

    def lose(self, node: str) -> None:
        """Delete a node's object and, as the cluster does later, the objects of its Pods; nobody sees an end."""

        def forget() -> None:
            self.server.nodes.unreachable.add(node)
            for pod in self.server.store.items("pods"):
                if pod["spec"].get("nodeName") == node:
                    self.server.store.remove("pods", pod)

        self.call(forget)

    def force_delete(self, name: str) -> None:
        """Delete a Pod's object as ``kubectl delete --force --grace-period=0`` does; its node may not notice."""

        def delete() -> None:
            pod = self.server.store.get("pods", NAMESPACE, name)
            self.server.delete_pod(pod, {"gracePeriodSeconds": 0})

        self.call(delete)

    def hold(self, name: str) -> None:
        """Let a Pod's object stay after its end, as a finalizer of somebody else does, or a node that is busy."""

        def add_finalizer() -> None:
            pod = self.server.store.get("pods", NAMESPACE, name)
            pod["metadata"].setdefault("finalizers", []).append("example.org/held")
            self.server.store.update("pods", pod)

        self.call(add_finalizer)

    def annotate_claim(self, command: str) -> None:
        """Do what a ``kubectl annotate pvc`` command with one annotation does."""
        program, verb, kind, claim, *_, change = shlex.split(command)
        assert (program, verb, kind) == ("kubectl", "annotate", "pvc")
        name, _, value = change.partition("=")

        def annotate() -> None:
            found = self.server.store.get("persistentvolumeclaims", NAMESPACE, claim)
            found["metadata"].setdefault("annotations", {})[name] = value
            self.server.store.update("persistentvolumeclaims", found)

        self.call(annotate)

    def forget_changes(self) -> None:
        """Expire every watch from before."""
        self.call(self.server.store.forget_changes)

    def add_objects(self, objects: list[Object]) -> None:
        """Add Pods without a kubelet: objects that no node runs."""

        def add() -> None:
            for one in objects:
                self.server.store.create("pods", NAMESPACE, one)

        self.call(add)

    async def _open(self) -> None:
        self.server = ApiServer(self.home, forgets_ends=self._forgets_ends, cleanup_seconds=self._cleanup_seconds)
        await self.server.start()

    # -- as exchanges use a cluster

    storage_class = STORAGE_CLASS

    def set_quota(self, name: str, hard: dict[str, int]) -> None:
        """Limit the objects of the namespace, by resource."""
        self.server.quota = Quota(name, hard)

    def remove_quota(self, name: str) -> None:
        """Remove the limit."""
        self.server.quota = Quota(name)

    def take_right(self, resource: str, verb: str) -> None:
        """Remove a right from the Role of the control plane."""
        self.server.users[TOKEN].rights[resource].discard(verb)

    def widen_role(self) -> None:
        """Let the Role of the control plane hold in every namespace, as that of an administrator would."""
        self.server.users[TOKEN].namespace = ""
