"""What a real cluster does to sessions: nothing is lost, nothing runs twice, and nothing false is said.

Each execution writes its own name to a ledger on the volume all the time, as an agent does with its work: it shows that
no two ever write at once, and that nothing written is lost. None is called dead while its container runs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator
from functools import cached_property
from itertools import groupby
from pathlib import Path

import pytest

from executors_app.agentctl_client.client import AgentctlClient
from executors_app.runtimes.kubernetes import exit_events, launch, names
from executors_app.runtimes.kubernetes.exit_events import CHECK_ALL, Namespace
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.errors import ExecutorError
from executors_app.wire.executions import ExitEvent, Launched, LaunchSpec, Observation, Observed
from tests.executors.harness import client_of, ended_job, known, observe_one, row_of, spec_for
from tests.kubernetes.cluster import NAMESPACE
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.nodes import ROOM, Node
from tests.waiting import eventually_async

pytestmark = pytest.mark.any_database

WRITE = "while :; do echo {writer} >>ledger; sleep 0.1; done"
ONCE = {"script": "echo ran >>times"}
FILL_MEMORY = """number=0
while [ $((number += 1)) -le 60 ]; do python3 -S -c 'import time; kept = b"x" * (4 << 20); time.sleep(600)' & done
wait"""
"""Uses more than a container has, in processes smaller than agentctl: the kernel ends the largest one first."""
PATIENCE = 240.0
"""Seconds until a node that was cut off has told what happened: its connections notice late that they are broken."""


class Subject:
    """A session on the cluster that writes to its ledger."""

    def __init__(self, harness: KubernetesHarness):
        self.harness = harness
        self.cluster = harness.cluster
        self.spec: LaunchSpec = spec_for(harness)
        self.pod = names.pod_name(self.spec.session_id)
        self.launched: Launched

    async def start(self) -> None:
        """Launch it, and let it write."""
        self.launched = await self.harness.runtime.launch(self.spec)
        await self.client.start_job("once", ONCE)
        await ended_job(self.client, "once")
        await self.write()

    async def start_again(self) -> None:
        """Launch it on its volume after its end, and let it write. What ran once does not run again."""
        before, written = self.launched.boot_id, self.ledger.read_text()
        for node in self.cluster.nodes:
            if node.processes("dockerd"):
                node.collect_garbage(self.pod)
        self.launched = await self.harness.runtime.launch(known(self.spec, self.launched))
        assert self.launched.boot_id != before
        await self.client.start_job("once", ONCE)
        await self.write()
        assert self.ledger.read_text().startswith(written), "what was written is still there"
        assert self.ledger.with_name("times").read_text() == "ran\n"

    async def write(self) -> None:
        """Let the execution write its name, until it ends."""
        writer = self.launched.boot_id
        await self.client.start_job(f"write-{writer}", {"script": WRITE.format(writer=writer)})
        await eventually_async(lambda: writer in self.writers(), describe="the execution writes")

    async def refusal(self) -> ExecutorError:
        """Return the error of a launch that must be refused, without waiting for what does not come."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "ENDING_TIMEOUT", 1.0)
            with pytest.raises(ExecutorError) as refused:
                await self.harness.runtime.launch(known(self.spec, self.launched))
        return refused.value

    async def confirm_the_end(self) -> None:
        """Be refused to start again, and say with the command of the message that the Pod has really ended."""
        refused = await self.refusal()
        assert refused.code == "pod_still_ending"
        kubectl, *command = shlex.split(refused.message.rpartition("run: ")[2])
        assert kubectl == "kubectl"
        self.cluster.kubectl(*command)
        assert await self.wait_for_end() == "end_confirmed"

    async def observe(self) -> Observation:
        """Observe the execution, which must not be called dead while its container runs."""
        found = await observe_one(self.harness, row_of(self.harness, self.spec, self.launched), timeout=10)
        assert found.observed is not Observed.DEAD or not self.runs()
        return found

    def runs(self) -> bool:
        """Return whether a node has a running container of its Pod, whatever the cluster says."""
        engines = [node for node in self.cluster.nodes if node.processes("dockerd")]
        running = [one["Labels"]["io.kubernetes.pod.uid"] for node in engines for one in node.containers()]
        return self.launched.state["container"] in running

    async def wait_for_end(self) -> str:
        """Wait until it is observed as dead, and never as something that it is not meanwhile; return the reason."""

        async def is_dead() -> str:
            found = await self.observe()
            return found.reason if found.observed is Observed.DEAD else ""

        reason: str = await eventually_async(is_dead, PATIENCE, describe="it is dead")
        return reason

    async def is_same(self) -> bool:
        """Return whether the same agentctl still runs and can be reached."""
        found = await self.observe()
        assert found.observed is not Observed.DEAD
        return found.report is not None and found.report["boot_id"] == self.launched.boot_id

    async def wait_until_missed(self, node: Node) -> None:
        """Wait until the cluster says that a node does not answer; its session is unknown then."""
        await eventually_async(lambda: node.name not in self.cluster.ready_nodes(), 120, "the cluster misses the node")
        assert (await self.observe()).observed is Observed.UNKNOWN

    @property
    def client(self) -> AgentctlClient:
        """Return the client of its agentctl."""
        return client_of(self.spec, self.launched)

    @property
    def node(self) -> Node:
        """Return its node."""
        return self.cluster.node_of(self.pod)

    @cached_property
    def ledger(self) -> Path:
        """The ledger on the volume, which stays where it is whatever answers."""
        return self.harness.seen(self.launched.worktree_path) / "ledger"

    def writers(self) -> list[str]:
        """Return who wrote to the ledger, each turn once."""
        text = self.ledger.read_text() if self.ledger.exists() else ""
        return [writer for writer, _ in groupby(text.splitlines())]

    def assert_one_at_a_time(self) -> None:
        """Check that no execution wrote after another one had begun to."""
        writers = self.writers()
        assert len(writers) == len(set(writers))

    async def keeps_writing(self) -> None:
        """Wait until it has written more."""
        size = self.ledger.stat().st_size
        await eventually_async(lambda: self.ledger.stat().st_size > size, describe="the execution writes on")


@pytest.fixture
async def subject(harness: KubernetesHarness) -> AsyncIterator[Subject]:
    """Yield a session that writes; whatever happened, its ledger has one writer at a time."""
    made = Subject(harness)
    await made.start()
    yield made
    harness.cluster.ensure()
    made.assert_one_at_a_time()


async def test_killed_kubelet_proves_nothing(subject: Subject) -> None:
    node = subject.node
    node.kill("kubelet")
    await subject.keeps_writing()
    assert (await subject.observe()).observed is not Observed.DEAD
    node.start_kubelet()
    await eventually_async(subject.is_same, PATIENCE, describe="the same agentctl is seen")


async def test_api_server_that_is_down_proves_nothing(subject: Subject) -> None:
    plane = subject.cluster.control_plane
    plane.kill("kube-apiserver")
    await subject.keeps_writing()
    assert (await subject.observe()).observed is Observed.UNKNOWN
    assert (await subject.refusal()).code == "cluster_unavailable"
    plane.start_api_server()
    await eventually_async(subject.is_same, PATIENCE, describe="the same agentctl is seen")


async def test_partitioned_node_is_unknown_and_its_session_goes_on(subject: Subject) -> None:
    node, cluster = subject.node, subject.cluster
    cluster.partition(node)
    await subject.wait_until_missed(node)
    await subject.keeps_writing()
    cluster.heal(node)
    await eventually_async(subject.is_same, PATIENCE, describe="the same agentctl is seen")


async def test_forced_deletion_and_removal_of_the_node_object_prove_nothing_during_a_partition(
    subject: Subject,
) -> None:
    node, cluster = subject.node, subject.cluster
    cluster.partition(node)
    await subject.wait_until_missed(node)
    _delete_by_force(subject)
    cluster.kubectl("delete", "node", node.name, "--wait=false")
    await subject.keeps_writing()
    assert (await subject.observe()).observed is Observed.UNKNOWN
    assert (await subject.refusal()).code == "pod_still_ending"

    cluster.heal(node)
    node.restart_kubelet()
    await subject.wait_for_end()
    await subject.start_again()


async def test_lost_node_is_unknown_until_a_person_confirms_the_end(subject: Subject) -> None:
    node, cluster = subject.node, subject.cluster
    node.stop()
    await subject.wait_until_missed(node)
    _delete_by_force(subject)
    cluster.kubectl("delete", "node", node.name, "--wait=false")
    assert (await subject.observe()).observed is Observed.UNKNOWN
    await subject.confirm_the_end()
    await subject.start_again()
    assert subject.node is not node
    cluster.ensure()
    await subject.keeps_writing()


async def test_node_that_comes_back_says_that_its_session_has_ended(subject: Subject) -> None:
    node, cluster = subject.node, subject.cluster
    node.stop()
    assert not node.processes("kubelet")
    assert node.control_group not in os.listdir("/sys/fs/cgroup")  # noqa: PTH208
    cluster.ensure()
    await subject.wait_for_end()
    await subject.start_again()


async def test_drained_session_ends_and_starts_on_the_other_node(subject: Subject) -> None:
    node, cluster = subject.node, subject.cluster
    following = asyncio.create_task(_events_until_the_end(subject))
    await asyncio.to_thread(cluster.kubectl, "drain", node.name, "--force", "--delete-emptydir-data", timeout=PATIENCE)
    await asyncio.wait_for(following, PATIENCE)
    assert await subject.wait_for_end() == "pod_ended"
    await subject.start_again()
    assert subject.node is not node


async def test_forced_deletion_by_an_operator_is_a_death_once_the_container_has_ended(subject: Subject) -> None:
    _delete_by_force(subject)
    assert await subject.wait_for_end() == "pod_ended"
    await subject.start_again()


async def test_eviction_that_the_api_was_asked_for_is_a_graceful_end(subject: Subject) -> None:
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": subject.pod}}
    subject.cluster.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{subject.pod}/eviction", eviction)
    assert await subject.wait_for_end() == "pod_ended"
    await subject.start_again()


async def test_pod_that_its_node_evicted_is_unknown_until_a_person_confirms_the_end(subject: Subject) -> None:
    # A kubelet of this age removes what it has reported of the containers, and never says that they have ended.
    with subject.node.almost_full() as filler:
        await eventually_async(subject.is_same, PATIENCE, describe="the node has taken its Pods back")
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * ROOM)
        await eventually_async(lambda: not subject.runs(), PATIENCE, describe="the container has ended")
    await eventually_async(lambda: Pod(subject.harness.pod(subject.spec.session_id)).phase == "Failed", PATIENCE)
    found = await subject.observe()
    assert (found.observed, found.reason) == (Observed.UNKNOWN, "pod_end_unconfirmed")
    await subject.confirm_the_end()
    await subject.start_again()


async def test_container_without_memory_is_said(subject: Subject) -> None:
    await subject.client.start_job("fill", {"script": FILL_MEMORY})
    assert await subject.wait_for_end() == "out_of_memory"
    await subject.start_again()


async def test_expired_watch_misses_no_end(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = exit_events._Follower(_source(subject))
    stale.version = "1"  # of long ago
    monkeypatch.setattr(exit_events, "_Follower", lambda _: stale)
    subject.harness.kill(subject.spec)
    assert (await asyncio.wait_for(_events_until_the_end(subject), PATIENCE))[0] == CHECK_ALL
    await subject.wait_for_end()
    await subject.start_again()


def _delete_by_force(subject: Subject) -> None:
    subject.cluster.kubectl("delete", "pod", subject.pod, "--force", "--grace-period=0", "--wait=false")


async def _events_until_the_end(subject: Subject) -> list[ExitEvent]:
    """Follow the namespace until the session has ended; return what was said."""
    said: list[ExitEvent] = []
    async for event in exit_events.exit_events(_source(subject)):
        said.append(event)
        if event.session_id == subject.spec.session_id:
            break
    return said


def _source(subject: Subject) -> Namespace:
    harness = subject.harness
    source = harness.runtime.exit_event_source(row_of(harness, subject.spec, subject.launched))
    assert isinstance(source, Namespace)
    return source
