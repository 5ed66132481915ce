"""The settings of an executor on Docker."""

from __future__ import annotations

from typing import Any

import pytest

from executors_app.runtimes.containers.config import DockerConfig, read_docker_config


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"imgae": "x"}, "imgae"),
        ({"image": 3}, "image"),
        ({"image": "two words"}, "image"),
        ({"memory_mb": 64}, "128"),
        ({"memory_mb": True}, "memory_mb"),
        ({"memory_mb": "4g"}, "memory_mb"),
        ({"memory_mb": 1.5}, "whole"),
        ({"pids": 1}, "pids"),
        ({"cpus": -1}, "cpus"),
        ({"cpus": float("nan")}, "cpus"),
        ({"subnets": "10.0.0.1/8"}, "subnets"),
        ({"subnets": "8.8.0.0/16"}, "private"),
        ({"subnets": "10.0.0.0/30"}, "/29"),
        ({"subnets": "fd00::/64"}, "IPv4"),
        ({"subnets": ["10.0.0.0/8"]}, "subnets"),
    ],
)
def test_invalid_setting_is_rejected_in_one_sentence(config: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        read_docker_config(config)


def test_every_setting_has_a_default() -> None:
    assert read_docker_config({}) == DockerConfig()
    assert list(DockerConfig().networks_for("e")) == [""]


def test_subnets_follow_from_the_execution_id() -> None:
    config = read_docker_config({"subnets": "10.9.0.0/24", "cpus": 0.5})
    found = list(config.networks_for("an execution"))
    assert found == list(config.networks_for("an execution"))
    assert len(set(found)) == 32
    assert all(one.startswith("10.9.0.") and one.endswith("/29") for one in found)
