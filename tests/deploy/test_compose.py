"""deploy/compose.yaml: minimal privileges, no mounted container engine socket, and no missing references."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml

from kandev.environment import read_environment
from kandev.request_slots import MAX_REQUESTS
from tests.services import ROOT

OURS = ("migrate", "web-a", "web-b", "supervisor", "worker")
SECRETS = (
    *("secret-key", "database-url", "database-password", "redis-url", "redis-password", "host-token"),
    "metrics-token",
)
KEYS = {
    *("build", "image", "command", "entrypoint", "environment", "depends_on", "healthcheck", "init", "restart", "user"),
    *("cap_add", "cap_drop", "pids_limit", "read_only", "secrets", "security_opt", "shm_size", "stop_grace_period"),
    *("networks", "ports", "tmpfs", "volumes"),
}
"""The keys of a service in the Compose specification that the file uses."""


@cache
def composed() -> dict[str, Any]:
    """Return the parsed file with its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    return found


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = composed()["services"]
    return found


@pytest.mark.parametrize("name", list(composed()["services"]))
def test_service_has_only_the_rights_it_needs(name: str) -> None:
    service = services()[name]
    assert set(service) <= KEYS
    assert not [volume for volume in service.get("volumes", ()) if ".sock" in str(volume)]
    assert not {"privileged", "network_mode", "pid", "devices"} & set(service)
    if name == "postgresql":  # its image starts as root and drops privileges by itself
        return
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only") or name == "agents", "agents may write anywhere in their own container"


def test_images_of_others_are_pinned_by_version_and_digest() -> None:
    names = [service["image"] for service in services().values() if "$" not in service["image"]]
    for dockerfile in ("Dockerfile", "Dockerfile.agentctl"):
        names += re.findall(r"^ARG (?:BASE|NODE)=(.+)", (ROOT / "deploy" / dockerfile).read_text(), re.MULTILINE)
    pinned = [re.fullmatch(r"(\w+:\d[\w.-]+)@sha256:[0-9a-f]{64}", name) for name in names]
    assert len(pinned) == 6 and all(pinned), names
    assert len(set(names)) == len({match[1] for match in pinned if match}), "one digest for each version"


@pytest.mark.parametrize("name", OURS)
def test_service_settings_are_valid(name: str) -> None:
    settings = {key: expanded(value) for key, value in services()[name]["environment"].items()}
    files = {key: value for key, value in settings.items() if key.endswith("_FILE")}
    read = read_environment({key: value for key, value in settings.items() if key not in files})
    assert read.allowed_hosts == ("kandev.example",)
    assert read.trusted_origins == ("https://kandev.example",)
    (trusted,) = read.trusted_proxies
    inside = composed()["networks"]["inside"]
    assert inside["internal"] is True, "the network has no route to the outside"
    assert str(trusted) == expanded(inside["ipam"]["config"][0]["subnet"])
    assert set(files.values()) == {f"/run/secrets/{secret}" for secret in services()[name]["secrets"]}


def expanded(value: str) -> str:
    """Expand variables with only ``SITE=kandev.example`` set."""
    text = re.sub(r"\$\{SITE(:\?[^}]*)?\}", "kandev.example", str(value))
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.mark.parametrize("name", OURS)
def test_restarted_container_is_the_same_host(name: str) -> None:
    assert expanded(services()[name]["environment"]["KANDEV_HOST_NAME"]) == "kandev"


def test_every_named_volume_secret_and_network_exists() -> None:
    volumes, secrets = set(composed()["volumes"]), set(composed()["secrets"])
    assert secrets == set(SECRETS)
    for service in services().values():
        assert set(service.get("secrets", ())) <= secrets
        assert set(service.get("networks", ())) <= set(composed()["networks"])
        assert set(service.get("depends_on", ())) <= set(services())
        for volume in service.get("volumes", ()):
            source = expanded(volume).split(":")[0]
            assert source.startswith(".") or source in volumes
    for build in (service["build"] for service in services().values() if "build" in service):
        assert (ROOT / build["dockerfile"]).exists()


def test_services_wait_for_what_they_depend_on() -> None:
    for name in set(OURS) - {"migrate"}:
        assert services()[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services()["migrate"]["depends_on"]["postgresql"]["condition"] == "service_healthy"
    for needed in ("postgresql", "redis"):
        assert services()[needed]["healthcheck"]["test"]


def test_database_has_connections_for_every_process() -> None:
    (option,) = (word for word in services()["postgresql"]["command"] if word.startswith("max_connections="))
    webs = sum(name.startswith("web-") for name in services())
    others = 20 + 3 + 10  # as docs/deploy.md plans for the supervisor, the worker, and everything else
    assert int(option.partition("=")[2]) >= webs * (MAX_REQUESTS + 10) + others


def test_only_the_proxy_publishes_ports() -> None:
    assert [name for name, service in services().items() if "ports" in service] == ["proxy"]
    for name in ("postgresql", "redis"):
        assert services()[name]["networks"] == ["inside"]
    webs = re.findall(r"web-\w+(?=-inside:8000)", services()["proxy"]["environment"]["WEBS"])
    assert webs == [name for name in services() if name.startswith("web-")]


def test_proxy_calls_the_web_processes_in_the_network_whose_addresses_are_trusted() -> None:
    """They share two networks, and the engine alone decides in which one it looks up the name of a service."""
    inside = [services()[name]["networks"]["inside"]["aliases"] for name in ("web-a", "web-b")]
    called = services()["proxy"]["environment"]["WEBS"].split()
    assert called == [f"{alias}:8000" for aliases in inside for alias in aliases]
    assert all("aliases" not in services()[name]["networks"]["outside"] for name in ("web-a", "web-b"))


def test_agents_are_not_in_the_network_whose_addresses_are_trusted() -> None:
    assert [name for name in services() if "inside" not in services()[name]["networks"]] == ["agents"]
    shared = set(services()["agents"]["networks"]) & set(services()["supervisor"]["networks"])
    assert shared, "the supervisor reaches agents by their name"


def test_compose_accepts_the_file() -> None:
    has_plugin = (
        shutil.which("docker")
        and not subprocess.run(["docker", "compose", "version"], check=False, capture_output=True).returncode
    )
    if not has_plugin:
        pytest.skip("the Compose plugin is not installed")
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SITE": "kandev.example"}
    done = subprocess.run(
        ["docker", "compose", "config", "--quiet"], cwd=ROOT, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
