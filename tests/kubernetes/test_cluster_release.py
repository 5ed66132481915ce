"""Kandev installed by Helm on a real cluster: its rights, and what upgrades and rollbacks do to a session in a Pod."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pytest

from executors_app.runtimes.kubernetes.cluster import RIGHTS
from tests.drills.deployment import Session
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.installed import COMPONENTS, NAMESPACE, SESSIONS, InstalledKandev
from tests.services import require
from tests.waiting import eventually

pytestmark = pytest.mark.any_database

LONG = 300.0
"""Seconds for what begins with the start of processes on a node that starts others too."""


class Visitor:
    """Requests a page again and again through the Service, as users do."""

    def __init__(self, url: str):
        self.url = url
        self.answered = 0
        self.failures: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._visit, name="visitor")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _visit(self) -> None:
        while not self._is_over.wait(0.2):
            try:
                with urllib.request.urlopen(f"{self.url}/login/", timeout=60) as answer:
                    answer.read()
                self.answered += 1
            except OSError as error:
                self.failures.append(str(error))


@pytest.fixture(scope="module")
def kandev(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledKandev]:
    """Yield a Kandev that Helm has installed, and that starts sessions as Pods."""
    require("postgres")
    require("redis")
    require("tini")
    shared_cluster.ensure()
    made = InstalledKandev(tmp_path_factory.mktemp("kandev"), shared_cluster)
    try:
        with ThreadPoolExecutor() as beside:
            built = beside.submit(made.build_image)
            made.prepare()
            built.result()
        assert made.helm("install") == {"revision": 1, "status": "deployed"}
        made.open()
        yield made
    finally:
        made.close()


def test_installed_kandev_has_the_rights_that_it_needs_and_no_others(kandev: InstalledKandev) -> None:
    running = [one for component in COMPONENTS for one in kandev.pods(component)]
    assert len({one["spec"]["nodeName"] for one in running}) == 1, "they share a disk of one node"
    assert not any(status["restartCount"] for one in running for status in one["status"]["containerStatuses"])

    assert all(kandev.may(verb, resource, SESSIONS) for resource, verb in RIGHTS)
    assert not kandev.may("get", "secrets", SESSIONS), "what sessions were given cannot be read again"
    for resource, verb in (*RIGHTS, ("secrets", "get")):
        assert not kandev.may(verb, resource, NAMESPACE), "its own Secrets are here"
    assert not kandev.may("get", "nodes", NAMESPACE)


def test_turn_goes_on_through_an_upgrade_a_failed_one_and_a_rollback(kandev: InstalledKandev) -> None:
    session = kandev.start_session("remember walrus")
    session.wait_for("WAITING_FOR_INPUT", LONG)
    agent = session.execution["state"]
    session.prompt("ask")
    eventually(lambda: session.status()["pending_permissions"] == 1, LONG, "the agent waits in the middle of a turn")
    first = kandev.pod_names()

    with Visitor(kandev.url) as visitor:
        assert kandev.helm("upgrade", settings={"KANDEV_IDLE_SLEEP": "1200"})["status"] == "deployed"
        second = kandev.pod_names()
        assert not first & second, "all Pods are new"

        # The hook fails: this is no number.
        failed = kandev.helm("upgrade", settings={"KANDEV_LEASE_TTL": "nonsense"})
        assert "pre-upgrade" in failed["error"]
        assert kandev.pod_names() == second, "nothing was replaced"

        assert kandev.helm("rollback", revision=1)["status"] == "deployed"
        assert not kandev.pod_names() & second
    assert not visitor.failures
    assert visitor.answered

    assert session.status()["state"] == "RUNNING"
    assert session.execution["state"] == agent
    assert all(row["verified"] == "same_process" for row in session.receipts()[1:])
    answer_permission(session)
    session.prompt("what was the word?")
    eventually(lambda: len(session.turn_ends()) == 3, LONG, "the third turn has ended")
    assert "walrus" in session.agent_text().rpartition("remember walrus")[2]
    assert [row["state"] for row in session.prompts()] == ["done"] * 3
    assert set(session.turn_ends()) == {"session.run.completed"}


def answer_permission(session: Session) -> None:
    """Choose the first option of what the agent asks for."""
    [permission] = session.deployment.api("GET", f"{session.path}/permissions/")["results"]
    choice = {"option_id": permission["options"][0]["option_id"], "resume_token": permission["resume_token"]}
    session.deployment.api("POST", f"{session.path}/permissions/{permission['id']}/", choice)
