"""Each launch has a Secret of its own, so that no other one ever changes the token that a Pod reads."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from executors_app.runtimes.kubernetes import launch, lifecycle, manifests, names, reading, volumes, words
from executors_app.runtimes.kubernetes.cluster import PODS, SECRETS
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.reach import pod_token
from executors_app.wire.errors import RuntimeUnavailable
from executors_app.wire.launch_tokens import mint_launch_token
from tests.kubernetes.objects import EXECUTION, SECRET, SESSION, execution_facts, launch_spec, pod_object
from tests.kubernetes.test_volumes import ENDED, MemoryCluster

CONFIG = KubernetesConfig()


def token_read_by(cluster: Any, pod: Pod) -> str:
    """Return the token that the Pod reads."""
    return base64.b64decode(cluster.objects[SECRETS, pod.secret]["data"]["token"]).decode()


async def test_second_launch_past_a_lost_lease_leaves_the_token_of_the_first_pod() -> None:
    cluster: Any = MemoryCluster()
    pod = await launch._create(cluster, CONFIG, launch_spec())
    with pytest.raises(words.PodStillEnding):
        await launch._create(cluster, CONFIG, launch_spec())
    assert token_read_by(cluster, pod) == pod_token(pod, SECRET)
    assert cluster.secrets() == [pod.secret], "the second launch has removed its own"


async def test_second_reader_leaves_the_token_of_the_first_one() -> None:
    cluster: Any = MemoryCluster()
    reader = await reading._create(cluster, CONFIG, execution_facts(), state=True)
    with pytest.raises(RuntimeUnavailable):
        await reading._create(cluster, CONFIG, execution_facts(), state=True)
    assert token_read_by(cluster, reader) == pod_token(reader, SECRET)
    assert cluster.secrets() == [reader.secret]


async def test_late_end_of_the_last_pod_takes_nothing_from_the_next_one() -> None:
    cluster: Any = MemoryCluster()
    last = await launch._create(cluster, CONFIG, launch_spec())
    del cluster.objects[PODS, last.name]
    following = await launch._create(cluster, CONFIG, launch_spec())
    await volumes.let_go(cluster, last)
    assert cluster.secrets() == [following.secret]
    assert token_read_by(cluster, following) == pod_token(following, SECRET)


@pytest.mark.parametrize("pods", [(), (pod_object(ENDED, ENDED),)], ids=["absent", "ended"])
async def test_tokens_that_killed_launches_have_left_go_with_the_end_of_the_session(pods: tuple[Pod, ...]) -> None:
    cluster: Any = MemoryCluster(*pods)
    labels = names.execution_labels(EXECUTION, SESSION, "")
    for _ in range(2):
        await cluster.create(SECRETS, manifests.token_secret(labels, mint_launch_token(SECRET)))
    other = await cluster.create(SECRETS, manifests.token_secret({**labels, names.EXECUTION_LABEL: "2"}, SECRET))
    assert await lifecycle.end_pod(cluster, execution_facts())
    assert cluster.secrets() == [other["metadata"]["name"]]


@pytest.mark.parametrize(
    ("secret", "is_own"),
    [
        (f"kandev-{EXECUTION}", True),
        (f"kandev-{EXECUTION}-{'a' * 32}", True),
        (f"kandev-read-{EXECUTION}", False),
        ("kandev-settings", False),
        (f"kandev-{EXECUTION}-settings", False),
        ("", False),
        (["kandev"], False),
    ],
    ids=str,
)
async def test_pod_whose_fields_others_have_written_names_only_a_secret_of_its_own(secret: Any, is_own: bool) -> None:
    pod = pod_object(ENDED, ENDED)
    entry = {**pod.entry, "spec": {"volumes": [None, {"name": "token", "secret": {"secretName": secret}}]}}
    assert Pod(entry).secret == (secret if is_own else "")
