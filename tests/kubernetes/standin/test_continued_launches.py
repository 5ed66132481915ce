"""A launch that was killed is continued by the next one at once, wherever it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.kubernetes import launch
from executors_app.runtimes.kubernetes.cluster import open_cluster
from executors_app.runtimes.kubernetes.config import read_kubernetes_config
from executors_app.runtimes.kubernetes.launch import launch_pod
from tests.executors.repositories import make_repository
from tests.kubernetes.objects import launch_spec
from tests.kubernetes.standin.api import NAMESPACE
from tests.kubernetes.standin.cluster import StandIn
from tests.services import require
from tests.waiting import PATIENCE

pytestmark = pytest.mark.any_database
STEPS = ("_create", "_hold", "_upload")
"""After each of these, the process is killed."""


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", STEPS)
async def test_killed_launch_is_continued_with_the_same_pod(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    require("kubernetes stand-in")
    settings.KANDEV_DATA_DIR = tmp_path / "data"
    monkeypatch.setattr(launch, "WORKSPACE_TIMEOUT", PATIENCE)
    spec = launch_spec(repository_path=str(make_repository(tmp_path / "repository")))
    done = getattr(launch, step)

    async def done_and_killed(*arguments: Any, **options: Any) -> None:
        await done(*arguments, **options)
        raise Killed

    with StandIn().serving() as cluster:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(cluster.kubeconfig())
        config = read_kubernetes_config(
            {
                "kubeconfig": str(kubeconfig),
                "namespace": NAMESPACE,
                "image": "kandev-agentctl:test",
                "storage_class": cluster.storage_class,
            }
        )
        async with open_cluster(config.cluster, config.namespace) as opened:
            with monkeypatch.context() as patched:
                patched.setattr(launch, step, done_and_killed)
                with pytest.raises(Killed):
                    await launch_pod(opened, config, spec)
            (left,) = cluster.pods()
            up = await launch_pod(opened, config, spec)
            assert up.pod.uid == left["metadata"]["uid"]
