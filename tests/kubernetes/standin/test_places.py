"""Whether a cluster is the one in which sessions were started, before a person may declare that one lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.kubernetes.cluster import open_cluster
from executors_app.runtimes.kubernetes.config import read_kubernetes_config
from executors_app.runtimes.kubernetes.runtime import RUNTIME
from executors_app.wire.errors import RuntimeUnavailable
from tests.kubernetes.standin.api import TOKEN
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.standin.harness import executor_settings


async def _uid(config: dict[str, Any]) -> str:
    read = read_kubernetes_config(config)
    async with open_cluster(read.cluster, read.namespace) as cluster:
        return await cluster.namespace_uid()


@pytest.mark.parametrize(
    ("namespace", "place", "answers"),
    [("", "the same", True), ("", "another", False), ("deleted", "the same", False), ("deleted", "", False)],
    ids=["the same", "another", "deleted", "deleted, and not shown at its start"],
)
async def test_place_answers_only_where_its_namespace_is(
    stand_in: StandIn, tmp_path: Path, namespace: str, place: str, answers: bool
) -> None:
    config = executor_settings(stand_in, tmp_path)
    if place == "the same":
        place = await _uid(config)
    if namespace:
        config["namespace"] = namespace
        stand_in.server.users[TOKEN] = replace(stand_in.server.users[TOKEN], namespace="")  # a right in all namespaces
    assert await RUNTIME.place_answers(config, place) is answers


async def test_place_that_refuses_the_login_or_shows_no_namespace_answers(stand_in: StandIn, tmp_path: Path) -> None:
    config = executor_settings(stand_in, tmp_path)
    stand_in.take_right("namespaces", "get")
    assert await RUNTIME.place_answers(config, "any")
    Path(config["kubeconfig"]).write_text(stand_in.kubeconfig("an expired token"))
    assert await RUNTIME.place_answers(config, "any")


async def test_place_that_is_down_is_said_to_be(stand_in: StandIn, tmp_path: Path) -> None:
    config = executor_settings(stand_in, tmp_path)
    with stand_in.down(), pytest.raises(RuntimeUnavailable):
        await RUNTIME.place_answers(config, "any")
