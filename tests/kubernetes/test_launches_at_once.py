"""Two launches of one session, the first past a lost lease: neither spoils what the other has begun."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.runtimes.kubernetes import launch, volumes, words
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import NEVER_RAN
from tests.kubernetes.objects import launch_spec, pod_object
from tests.kubernetes.test_volumes import ENDED, RUNNING, MemoryCluster
from tests.waiting import PATIENCE

CONFIG = KubernetesConfig()
WAITING: dict[str, Any] = {"waiting": {}}


@pytest.mark.parametrize("patience", [-1.0, PATIENCE], ids=["seen late", "seen at once"])
async def test_pod_that_another_launch_has_given_its_seed_is_not_removed(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    serves = pod_object(RUNNING, ENDED, phase="Running")
    cluster: Any = MemoryCluster(serves, holder=serves.uid)
    seen = pod_object(WAITING, WAITING, phase="Pending")
    if patience < 0:
        seen = serves
    monkeypatch.setattr(launch, "START_TIMEOUT", patience)
    found = await launch._wait_for_seed_time(cluster, launch_spec(), seen)
    assert found.is_up
    assert cluster.log == []


@pytest.mark.parametrize("holder", ["", "uid-1"], ids=["first start", "continued"])
async def test_pod_that_was_deleted_meanwhile_gets_no_seed(holder: str) -> None:
    waits = pod_object(WAITING, RUNNING, phase="Pending")
    deleted = pod_object(WAITING, RUNNING, phase="Pending", deleted=True)
    cluster: Any = MemoryCluster(deleted, holder=holder)
    # Another process sees that the Pod was deleted and holds nothing, just before this one records it.
    assert await volumes.proven_end(cluster, deleted, cluster.volume) == ("" if holder else NEVER_RAN)
    with pytest.raises(words.PodStillEnding):
        await launch._hold(cluster, CONFIG, launch_spec(), waits)
    assert cluster.volume.holder == waits.uid
