"""What a real cluster does to sessions: none is called dead that runs, and no two ever write to one volume at once.

Each execution writes its own name to a ledger on the volume all the time, as an agent does with its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property
from itertools import groupby
from pathlib import Path

import pytest

from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.exit_events import CHECK_ALL, Namespace, exit_events
from executors_app.wire.executions import Launched, LaunchSpec, Observation, Observed
from tests.executors.harness import client_of, known, observe_one, row_of, spec_for
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.nodes import Node
from tests.waiting import eventually_async

WRITE = "while :; do echo {writer} >>ledger; sleep 0.1; done"


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
        await self.write()

    async def start_again(self) -> None:
        """Launch it on its volume after its end, and let it write."""
        before = self.launched.boot_id
        self.launched = await self.harness.runtime.launch(known(self.spec, self.launched))
        assert self.launched.boot_id != before
        await self.write()

    async def write(self) -> None:
        """Let the execution write its name, until it ends."""
        writer = self.launched.boot_id
        script = WRITE.format(writer=writer)
        await client_of(self.spec, self.launched).start_job(f"write-{writer}", {"script": script})
        await eventually_async(lambda: writer in self.writers(), describe="the execution writes")

    async def observe(self) -> Observation:
        """Observe the execution."""
        return await observe_one(self.harness, row_of(self.harness, self.spec, self.launched), timeout=10)

    async def wait_for(self, observed: Observed) -> Observation:
        """Wait until it is observed like that, and never as something that it is not meanwhile."""
        found: Observation = await self.observe()

        async def is_it() -> bool:
            nonlocal found
            found = await self.observe()
            assert found.observed in (observed, Observed.UNKNOWN, self._before)
            return found.observed is observed

        self._before = found.observed
        await eventually_async(is_it, timeout=180, describe=f"it is {observed}")
        return found

    async def is_same(self) -> bool:
        """Return whether the same agentctl still runs and can be reached."""
        found = await self.observe()
        return found.report is not None and found.report["boot_id"] == self.launched.boot_id

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
    made.assert_one_at_a_time()


async def test_killed_kubelet_proves_nothing(subject: Subject) -> None:
    node = subject.node
    node.kill("kubelet")
    await subject.keeps_writing()
    assert (await subject.observe()).observed is not Observed.DEAD
    node.start_kubelet()
    await eventually_async(subject.is_same, timeout=180, describe="the same agentctl is seen")


async def test_api_server_that_is_down_proves_nothing(subject: Subject) -> None:
    plane = subject.cluster.control_plane
    plane.kill("kube-apiserver")
    await subject.keeps_writing()
    assert (await subject.observe()).observed is Observed.UNKNOWN
    plane.start_api_server()
    await eventually_async(subject.is_same, timeout=180, describe="the same agentctl is seen")


async def test_drained_session_ends_and_starts_on_the_other_node(subject: Subject) -> None:
    node, cluster = subject.node, subject.cluster
    following = asyncio.create_task(_first_event(subject))
    await asyncio.to_thread(cluster.kubectl, "drain", node.name, "--force", "--delete-emptydir-data", timeout=240)
    assert await asyncio.wait_for(following, 120) == subject.spec.session_id
    assert (await subject.wait_for(Observed.DEAD)).reason == "pod_ended"
    await subject.start_again()
    assert subject.node is not node


async def test_forced_deletion_by_an_operator_is_a_death_once_the_container_has_ended(subject: Subject) -> None:
    subject.cluster.kubectl("delete", "pod", subject.pod, "--force", "--grace-period=0", "--wait=false")
    assert (await subject.wait_for(Observed.DEAD)).reason == "pod_ended"
    await subject.start_again()


async def _first_event(subject: Subject) -> str:
    """Follow the namespace until a session has ended; return its id."""
    async for event in exit_events(_source(subject)):
        if event != CHECK_ALL:
            return event.session_id
    raise AssertionError("the events have ended")


def _source(subject: Subject) -> Namespace:
    harness = subject.harness
    source = harness.runtime.exit_event_source(row_of(harness, subject.spec, subject.launched))
    assert isinstance(source, Namespace)
    return source
