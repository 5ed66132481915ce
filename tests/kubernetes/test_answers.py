"""Answers of an API server that are long, or come in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from executors_app.runtimes.kubernetes import cluster as cluster_calls
from executors_app.runtimes.kubernetes.cluster import PODS, Cluster
from executors_app.runtimes.kubernetes.words import ClusterListTooLarge


class Answer:
    """An answer that comes in parts."""

    status = 200

    def __init__(self, *parts: bytes):
        self._parts = parts
        self.content = self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part

    async def read(self, _: int) -> bytes:
        return self._parts[0]


def answering(monkeypatch: pytest.MonkeyPatch, *parts: bytes) -> Cluster:
    client: Any = None
    cluster = Cluster(client, "agents")

    async def send(*_: Any, **__: Any) -> Answer:
        return Answer(*parts)

    monkeypatch.setattr(cluster, "_send", send)
    return cluster


async def test_last_words_of_a_pod_are_read_whole_in_however_many_pieces_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = answering(monkeypatch, b"a first line\n", b'{"error": ', b'"worktree_missing"}\n')
    assert (await cluster.log_tail("pod", "agentctl")).endswith('{"error": "worktree_missing"}')


async def test_log_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = answering(monkeypatch, *[b"x" * 10_000] * 100)
    assert len(await cluster.log_tail("pod", "agentctl")) == 64 << 10


@pytest.mark.parametrize(("limit", "amount"), [("_MOST_OBJECTS", 10), ("_LIST_LIMIT", 1000)])
async def test_list_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch, limit: str, amount: int) -> None:
    monkeypatch.setattr(cluster_calls, limit, amount)
    cluster = answering(monkeypatch, b'{"items": [{}, {}, {}], "metadata": {"continue": "again"}}')
    with pytest.raises(ClusterListTooLarge, match="more pods of this Kandev than can be read"):
        await cluster.list_all(PODS)
