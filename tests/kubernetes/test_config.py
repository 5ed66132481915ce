"""The settings of an executor in a cluster: what is accepted, and what one sentence refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors_app.runtimes.kubernetes.config import read_kubernetes_config
from tests.kubernetes.objects import as_id


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"nonsense": 1}, "has no setting nonsense"),
        ({"kubeconfig": "relative"}, "absolute path"),
        ({"kubeconfig": "/does/not/exist"}, "cannot be read"),
        ({"kubeconfig": "/with space"}, "without spaces"),
        ({"context": "one"}, "no effect without kubeconfig"),
        ({"namespace": "Upper"}, "namespace must be the name"),
        ({"namespace": ""}, "namespace must be the name"),
        ({"namespace": "a/../b"}, "namespace must be the name"),
        ({"image": "a b"}, "without spaces"),
        ({"image_pull_policy": "Sometimes"}, "Always, IfNotPresent, Never"),
        ({"pull_secrets": "good, B A D"}, "pull_secrets must be the name"),
        ({"pull_secrets": ["one"]}, "names separated by commas"),
        ({"memory_mb": 10}, "at least 128"),
        ({"memory_mb": True}, "whole number"),
        ({"memory_mb": 2.5}, "whole number"),
        ({"storage_gb": 0}, "at least 1"),
        ({"cpu_request": -1}, "at least 0"),
        ({"cpu_request": 2, "cpus": 1}, "must not be above cpus"),
        ({"cpus": "one"}, "number of at least 0"),
        ({"storage_class": "A_B"}, "storage_class must be the name"),
        ({"access_mode": "ReadOnlyMany"}, "access_mode must be one of"),
        ({"service_account": "../x"}, "service_account must be the name"),
        ({"node_selector": "disk"}, "must be an object"),
        ({"node_selector": {"a b": "c"}}, "is not a label"),
        ({"node_selector": {"disk": "s s d"}}, "is not a value"),
        ({"user": "0:0"}, "not 0 (root)"),
        ({"user": "61817:1"}, "other than 61817"),
        ({"user": 1000}, "UID:GID"),
    ],
    ids=as_id,
)
def test_bad_setting_is_refused_with_one_sentence(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_kubernetes_config(config)
    assert said in str(refused.value)
    assert str(refused.value).endswith(".")


def test_kubeconfig_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_kubernetes_config({"kubeconfig": str(file)})
    file.chmod(0o600)
    read = read_kubernetes_config({"kubeconfig": str(file)})
    assert (read.cluster.kubeconfig, read.is_inside) == (str(file), False)


def test_address_that_does_not_fit_into_a_url_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    file.chmod(0o600)
    with pytest.raises(ValueError, match="bytes together"):
        read_kubernetes_config({"kubeconfig": str(file), "context": "c" * 200})


def test_every_setting_has_a_default() -> None:
    read = read_kubernetes_config({})
    assert (read.namespace, read.access_mode, read.is_inside) == ("kandev-sessions", "ReadWriteOnce", True)
    assert read_kubernetes_config({"pull_secrets": "one, two"}).pull_secret_names == ["one", "two"]
