"""Containers without a row are listed, and removed only with proof and on request."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from executors_app.models import Executor
from executors_app.runtimes.containers import lifecycle
from executors_app.runtimes.containers.sites import container_name, helper_labels
from executors_app.wire.executions import Launched, LaunchSpec, Observed
from tests.docker.engine import IMAGE
from tests.docker.harness import DockerHarness
from tests.executors.harness import observe_one, row_of, seen, spec_for
from tests.executors.rows import make_execution


async def test_orphans_are_listed_and_removed_only_with_proof_and_request(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched
) -> None:
    other = spec_for(harness)
    await harness.runtime.launch(other)
    (orphan,) = await harness.runtime.orphans({other.execution_id}, [])
    assert (orphan.id, orphan.execution_id, orphan.status) == (
        container_name(spec.execution_id),
        spec.execution_id,
        "running",
    )
    stranger = replace(orphan, id=container_name(other.execution_id))
    assert await harness.runtime.remove_orphan(stranger, []) is False, "the container belongs to another installation"
    assert await harness.runtime.remove_orphan(orphan, []) is True
    assert (await observe_one(harness, row_of(harness, spec, launched))).reason == "container_gone"
    assert (seen(harness, launched) / "README").exists()
    assert (await observe_one(harness, row_of(harness, other))).observed is Observed.ALIVE


async def test_helper_left_by_a_kill_is_an_orphan_of_a_known_execution(
    harness: DockerHarness, spec: LaunchSpec, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{container_name(spec.execution_id)}-work"
    known = {spec.execution_id}
    with harness.client() as client:
        labels = helper_labels(spec.execution_id, spec.session_id)
        client.create_container(IMAGE, name=name, labels=labels)
    assert await harness.runtime.orphans(known, []) == [], "the container may be at work"

    monkeypatch.setattr(lifecycle, "MAX_HELPER_SECONDS", -60.0)  # as if it were older than that
    (orphan,) = await harness.runtime.orphans(known, [])
    assert (orphan.id, orphan.execution_id, orphan.is_helper) == (name, spec.execution_id, True)
    own_container = replace(orphan, id=container_name(spec.execution_id))
    assert await harness.runtime.remove_orphan(own_container, []) is False, "the execution's own container is no helper"
    assert await harness.runtime.remove_orphan(orphan, []) is True
    assert await harness.runtime.orphans(known, []) == []
    assert (await observe_one(harness, row_of(harness, spec, launched))).observed is Observed.ALIVE


@pytest.mark.django_db
def test_command_removes_a_helper_of_a_known_execution(
    harness: DockerHarness, spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_execution(id=spec.execution_id)
    name = f"{container_name(spec.execution_id)}-work"
    with harness.client() as client:
        labels = helper_labels(spec.execution_id, spec.session_id)
        client.create_container(IMAGE, name=name, labels=labels)
    assert list_orphans() == []
    monkeypatch.setattr(lifecycle, "MAX_HELPER_SECONDS", -60.0)
    assert [one["id"] for one in list_orphans("--remove", name)] == [name]
    assert list_orphans() == []


def list_orphans(*arguments: str) -> list[dict[str, str]]:
    """Return the orphans that ``manage.py orphans --json`` lists."""
    output = StringIO()
    call_command("orphans", "--json", *arguments, stdout=output, stderr=StringIO())
    listed: list[dict[str, str]] = json.loads(output.getvalue())["orphans"]
    return listed


@pytest.mark.django_db
def test_orphans_command_lists_unknown_and_removes_named(harness: DockerHarness, spec: LaunchSpec) -> None:
    other = spec_for(harness)
    for one in (spec, other):
        asyncio.run(harness.runtime.launch(one))
    make_execution(id=other.execution_id)
    name = container_name(spec.execution_id)

    assert [(one["runtime"], one["id"]) for one in list_orphans()] == [("local_docker", name)]
    with pytest.raises(CommandError, match="is not an orphan"):
        list_orphans("--remove", container_name(other.execution_id))
    assert [one["id"] for one in list_orphans("--remove", name)] == [name]
    assert list_orphans() == []
    assert harness.inspect(other)["State"]["Running"]


@pytest.mark.django_db
def test_command_reports_an_unreachable_engine(harness: DockerHarness, settings: Any) -> None:
    settings.KANDEV_DOCKER_HOST = "unix:///nowhere/docker.sock"
    assert list_orphans() == [], "no orphan is listed"
    Executor.objects.create(name="Containers", runtime="local_docker")
    with pytest.raises(CommandError, match="Containers could not be reached") as refused:
        list_orphans()
    assert refused.value.returncode == 2
