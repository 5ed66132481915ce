"""The cache of Kubernetes' programs is used only if it is complete and unchanged; namespaces leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import build
from tests.kubernetes.namespaces import Namespace
from tests.waiting import eventually


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache with small programs and a stamp."""
    monkeypatch.setenv(build.CACHE, str(tmp_path))
    (tmp_path / "bin").mkdir()
    for name in build.PROGRAMS:
        (tmp_path / "bin" / name).write_text(name)
    build._write_stamp()
    return tmp_path


def test_complete_cache_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_build", lambda: pytest.fail("built again"))
    assert build.missing() == ""
    build.ensure()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("bin/kubelet", "the cache of Kubernetes is damaged: kubelet"),
        ("stamp.json", f"Kubernetes {build.VERSION} is not built"),
    ],
)
def test_incomplete_cache_is_named(cache: Path, damage: str, reason: str) -> None:
    (cache / damage).unlink()
    assert build.missing() == f"{reason} (make test-cluster{', once' if damage == 'stamp.json' else ''})"


def test_cache_of_another_recipe_is_built_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "RECIPE", build.RECIPE + 1)
    assert "is not built" in build.missing()


def test_program_that_was_changed_is_built_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(build, "_build", lambda: built.append(1))
    (cache / "bin" / "kubelet").write_text("KUBELET"[:7])
    build.ensure()
    assert built == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create namespaces")
def test_namespace_ends_with_all_that_runs_in_it(tmp_path: Path) -> None:
    (tmp_path / "volumes").mkdir()
    machine = Namespace("machine", tmp_path / "machine", tmp_path / "volumes")
    machine.start(ends_with_us=True)
    try:
        assert "lo" in machine.run("ip", "-brief", "link")
        machine.spawn("sh", {"-c": "", f"sleep 1000 # {tmp_path}/machine": ""})
        eventually(lambda: machine.processes("sh"), describe="the program runs")
    finally:
        machine.stop()
    assert not machine.processes("sh")
    assert not machine.is_running()
