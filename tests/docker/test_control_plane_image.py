"""The image of web, supervisor and worker, built from its Dockerfile and run as in compose.yaml."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pytest

from tests.docker import machine_image
from tests.docker.engine import Engine, build
from tests.services import require
from tests.waiting import PATIENCE, WaitTimeout, eventually

TAG: Final = "kandev:test"
NETWORK: Final = "kandev-image-test"
CONTEXT: Final = (
    *("executors_app", "frontend", "kandev", "manage.py", "requirements", "scripts/setup", "sessions_app", "templates"),
)
MORE_PROGRAMS: Final = "tini cksum tr awk basename dirname mktemp which"
"""What its build and its start call, beside what the base of agentctl's image has."""
SITE: Final = "kandev.example"
ENVIRONMENT: Final = {
    "KANDEV_SECRET_KEY": "a key of these tests alone, that is long enough for anybody",
    "KANDEV_ALLOWED_HOSTS": SITE,
    "KANDEV_TRUSTED_ORIGINS": f"https://{SITE}",
}


class ControlPlaneContainers:
    """Containers of the image that share a volume and a network, with the minimal rights of compose.yaml."""

    def __init__(self, client: Any):
        self.client = client
        client.create_network(NETWORK, driver="bridge")
        self.volume = client.create_volume()["Name"]
        self._made: list[str] = []

    def start(self, command: Sequence[str] | None = None, environment: Mapping[str, str] = ENVIRONMENT) -> str:
        """Start a container with a command, or the image's own; return its id."""
        host = self.client.create_host_config(
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            tmpfs={"/tmp": "mode=1777,size=64m"},
            binds=[f"{self.volume}:/var/lib/kandev"],
            network_mode=NETWORK,
        )
        words = None if command is None else list(command)
        made = self.client.create_container(TAG, words, environment=dict(environment), host_config=host)["Id"]
        self._made.append(made)
        self.client.start(made)
        return str(made)

    def run(self, *command: str) -> str:
        """Run a command to its end and check that it succeeded; return its output."""
        made = self.start(command)
        status, output = self.client.wait(made, timeout=120)["StatusCode"], self.client.logs(made).decode()
        assert status == 0, output
        return str(output)

    def inside(self, container: str, *command: str) -> str:
        """Return the output of a command in a running container."""
        made = self.client.exec_create(container, list(command))["Id"]
        output = self.client.exec_start(made).decode()
        assert self.client.exec_inspect(made)["ExitCode"] == 0, output
        return str(output)

    def address(self, container: str) -> str:
        """Return the URL at which this machine reaches a container."""
        found = self.client.inspect_container(container)["NetworkSettings"]["Networks"][NETWORK]["IPAddress"]
        return f"http://{found}:8000"

    def close(self) -> None:
        """Remove all containers, the volume and the network."""
        for container in self._made:
            self.client.remove_container(container, force=True)
        self.client.remove_volume(self.volume)
        self.client.remove_network(NETWORK)


@pytest.fixture(scope="module")
def containers(shared_engine: Engine) -> Iterator[ControlPlaneContainers]:
    """Yield containers of the built image, with a migrated database."""
    require("tini")
    shared_engine.ensure()
    client = shared_engine.client(timeout=300)
    base = machine_image.import_into(client, tag="whole", requirements="base", more_programs=MORE_PROGRAMS)
    build(client, "deploy/Dockerfile", CONTEXT, TAG, BASE=base, NODE=base)
    made = ControlPlaneContainers(client)
    try:
        made.run("python3", "manage.py", "migrate", "--verbosity", "0")
        yield made
    finally:
        made.close()
        client.close()


def status_of(url: str, host: str = SITE) -> int:
    """Return the status of a page requested with the site's host name; 0 without a response."""
    request = urllib.request.Request(url, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def test_web_is_healthy_ready_and_unprivileged(containers: ControlPlaneContainers) -> None:
    supervisor = containers.start(["python3", "manage.py", "supervise"])
    web = containers.start()
    wait_until_healthy(containers, web)
    eventually(
        lambda: status_of(f"{containers.address(web)}/readyz") == 200, timeout=120, describe="/readyz answers 200"
    )
    assert status_of(f"{containers.address(web)}/healthz", "somebody.else") == 400
    assert status_of(f"{containers.address(web)}/static/kandev/base.css") == 200
    assert status_of(f"{containers.address(web)}/login/") == 200

    assert containers.inside(web, "id", "-u").strip() == "10001"
    status = containers.inside(web, "cat", "/proc/1/status")
    assert "Name:\ttini\n" in status
    assert "CapEff:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status
    read_only = "import pathlib; pathlib.Path('/opt/kandev/kandev/new.py').touch()"
    with pytest.raises(AssertionError, match="Read-only file system"):
        containers.inside(web, "python3", "-c", read_only)

    for container in (web, supervisor):
        containers.client.stop(container, timeout=60)
        state = containers.client.inspect_container(container)["State"]
        assert state["ExitCode"] in {0, 143}, containers.client.logs(container).decode()[-2000:]


def health(containers: ControlPlaneContainers, container: str) -> str:
    """Return the result of the container's own health check."""
    return str(containers.client.inspect_container(container)["State"]["Health"]["Status"])


def wait_until_healthy(containers: ControlPlaneContainers, container: str) -> None:
    """Wait until the container's own health check succeeds; otherwise fail with its state and the end of its log."""
    try:
        eventually(lambda: health(containers, container) == "healthy", timeout=180)
    except WaitTimeout:
        state = containers.client.inspect_container(container)["State"]
        pytest.fail(f"{json.dumps(state)}\n{containers.client.logs(container, tail=50).decode()}")


def test_web_that_does_not_answer_is_unhealthy(containers: ControlPlaneContainers) -> None:
    idle = containers.start(["sleep", "600"])
    with pytest.raises(AssertionError, match="refused"):
        containers.inside(idle, "python3", "-I", "-S", "/opt/kandev/kandev/healthcheck.py")


def test_deployment_check_finds_no_problem(containers: ControlPlaneContainers) -> None:
    output = containers.run("python3", "manage.py", "check", "--deploy", "--fail-level", "WARNING")
    assert "no issues" in output


def test_worker_runs_queued_jobs(containers: ControlPlaneContainers) -> None:
    queue = "from django_q.tasks import async_task; print(async_task('sessions_app.tasks.notifications.notify'))"
    assert containers.run("python3", "manage.py", "shell", "-v", "0", "-c", queue)
    containers.run("python3", "manage.py", "qcluster", "--run-once")
    count = "from django_q.models import OrmQ; print(OrmQ.objects.count())"
    assert containers.run("python3", "manage.py", "shell", "-v", "0", "-c", count).split()[-1] == "0"


def test_image_contains_only_what_it_runs(containers: ControlPlaneContainers) -> None:
    code = """
import importlib.util, json, shutil, pathlib
print(json.dumps({
    "programs": [name for name in ("git", "tini", "pip", "gcc", "cc", "make", "npm", "node") if shutil.which(name)],
    "pip": bool(importlib.util.find_spec("pip")),
    "project": sorted(path.name for path in pathlib.Path("/opt/kandev").iterdir()),
}))
"""
    found = json.loads(containers.run("python3", "-c", code))
    assert found["programs"] == ["git", "tini"]
    assert not found["pip"]
    assert found["project"] == [
        "executors_app",
        "frontend",
        "kandev",
        "manage.py",
        "packages",
        "sessions_app",
        "templates",
    ]
