"""Start the container of an execution: found, restarted or created."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.conf import settings

from executors_app.machine.process import spawning
from executors_app.repositories.workspace_store import state_directory_of
from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.config import DockerConfig
from executors_app.runtimes.containers.container import Container
from executors_app.runtimes.containers.engine import Engine, EngineRefused
from executors_app.runtimes.containers.sites import HOME_PATH, SEED_PATH, STATE_PATH, ContainerSetup, Site
from executors_app.wire.errors import LaunchFailed
from executors_app.wire.executions import LaunchSpec
from executors_app.wire.protocol import EXECUTION_MARKER

AGENTCTL_PORT: Final = 8700
"""agentctl's port inside the container; the published port changes with every start."""
_SCRATCH: Final = "rw,exec,nosuid,nodev,mode=1777,size=1g"
_LOG_LIMIT: Final = {"type": "json-file", "config": {"max-size": "10m", "max-file": "2"}}


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container; its agentctl may not be ready yet."""

    container: Container
    setup: ContainerSetup
    found: bool
    """Whether it was already running."""


def container_url(container: Container | None, host: str) -> str | None:
    """Return the URL of the container's agentctl; None if it does not run or has no published port yet."""
    if container is None or container.status != "running":
        return None
    if port := container.ports.get(AGENTCTL_PORT):
        return f"http://{host}:{port}"
    return None


def image_name(config: DockerConfig) -> str:
    """Return the name of the image to run."""
    return config.image or str(settings.KANDEV_AGENTCTL_IMAGE)


def ensure_container(engine: Engine, site: Site, spec: LaunchSpec, lost: str = "") -> RunningContainer:
    """Return the execution's container, running. Blocks.

    ``lost``: why the workspace must be rebuilt from what has arrived; empty if it need not be. Raises LaunchFailed,
    RuntimeUnavailable, WorkspaceGone, RepositoryUnusable, OSError.
    """
    places = state_directory_of(spec.execution_id)
    places.create()
    # One start at a time: two could create the container with one token and store the other.
    with places.start_lock():
        container = engine.find(sites.container_name(spec.execution_id))
        if container is not None and not sites.is_owned(container.labels, spec.execution_id, spec.session_id):
            raise LaunchFailed(f"The container {container.name} does not belong to this session, so it was left alone.")
        is_running = container is not None and container.status in ("running", "restarting", "paused")
        setup = site.prepare(engine, spec, is_running=is_running, lost=lost)
        if container is not None and container.status == "paused":
            engine.unpause(container.id)
            container = _find_started(engine, container.name)
        if container is not None and is_running:
            return RunningContainer(container, setup, found=True)
        return RunningContainer(
            _start(engine, container, _DesiredContainer(engine, spec, site, setup)), setup, found=False
        )


class _DesiredContainer:
    """The container that would be created for this execution now."""

    def __init__(self, engine: Engine, spec: LaunchSpec, site: Site, setup: ContainerSetup):
        self.config, self.execution_id, self.setup = site.config, spec.execution_id, setup
        self.name = sites.container_name(spec.execution_id)
        image = image_name(site.config)
        self.host = _host_config(self.name, site, setup)
        self.options = _options(spec, image, setup)
        parts = [engine.image_id(image), self.host, self.options]
        made_from = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        self.labels = sites.execution_labels(spec.execution_id, spec.session_id, spec.task_id)
        self.spec = hashlib.sha256(made_from).hexdigest()[:16]

    def fits(self, container: Container, network: str) -> bool:
        """Whether a stopped container can be started without being recreated."""
        has = container.networks.get(self.name, "")
        whole = container.status in ("created", "exited")
        return whole and container.labels.get(sites.SPEC_LABEL) == self.spec and has in ("", network)


def _host_config(name: str, site: Site, setup: ContainerSetup) -> dict[str, Any]:
    """Return the container's restrictions, limits and mounts."""
    return {
        "network_mode": name,
        "port_bindings": {AGENTCTL_PORT: (site.publish,)},
        "cap_drop": ["ALL"],
        "cap_add": ["SETGID", "SETPCAP", "SETUID"],  # agentctl needs them to switch to two users, then drops them
        **confinement_options(site.config),
        "read_only": True,
        "tmpfs": dict.fromkeys(("/tmp", "/var/tmp", "/run"), _SCRATCH),  # noqa: S108 - the container's
        "restart_policy": {"Name": "no"},
        "mounts": list(setup.mounts),
    }


def confinement_options(config: DockerConfig) -> dict[str, Any]:
    """Return the restrictions of every container of an executor."""
    options = {
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": config.memory_mb << 20,
        "memswap_limit": config.memory_mb << 20,  # memory and swap together: no swap
        "pids_limit": config.pids,
        "log_config": _LOG_LIMIT,
    }
    if config.cpus:
        options["nano_cpus"] = round(config.cpus * 1e9)
    return options


def _options(spec: LaunchSpec, image: str, setup: ContainerSetup) -> dict[str, Any]:
    """Return what the container runs, and as which user."""
    command = ["--workspace", str(setup.worktree.path)]
    command += ["--state-dir", STATE_PATH]
    command += ["--session-id", spec.session_id]
    if spec.worktree_id:
        command += ["--worktree-of", spec.worktree_id]
    command += ["--execution-id", spec.execution_id]
    command += ["--token-file", f"{STATE_PATH}/token"]
    command += ["--seed", SEED_PATH]
    command += ["--root", str(setup.root)]
    command += ["--listen", f"0.0.0.0:{AGENTCTL_PORT}"]
    command += ["--run-as", setup.user]
    return {
        "image": image,
        "command": command,
        "environment": {EXECUTION_MARKER: spec.execution_id, spawning.SESSION_VARIABLE: spec.session_id},
        "user": "0:0",
        "working_dir": HOME_PATH,
        "ports": [AGENTCTL_PORT],
    }


def _start(engine: Engine, container: Container | None, wanted: _DesiredContainer) -> Container:
    network = _network(engine, wanted)
    if container is not None and not wanted.fits(container, network):
        engine.remove(container.id)
        container = None
    if container is None:
        engine.create(
            wanted.name,
            {**wanted.options, "labels": {**wanted.labels, sites.SPEC_LABEL: wanted.spec}},
            wanted.host,
        )
    elif wanted.name not in container.networks:
        engine.connect(container.id, network)
    wanted.setup.before_start(engine, wanted.name)
    engine.start(wanted.name)
    return _find_started(engine, wanted.name)


def _network(engine: Engine, wanted: _DesiredContainer) -> str:
    """Return the execution's own network; if a subnet is taken, the next one is tried."""
    if found := engine.network(wanted.name):
        return found
    refusal: EngineRefused | None = None
    for subnet in wanted.config.networks_for(wanted.execution_id):
        try:
            return engine.make_network(wanted.name, wanted.labels, subnet)
        except EngineRefused as error:
            refusal = error
    raise LaunchFailed(
        f"The Docker engine has no free network addresses ({refusal}). Set subnets in this executor's settings."
    )


def _find_started(engine: Engine, name: str) -> Container:
    found = engine.find(name)
    if found is None:
        raise LaunchFailed(f"The container {name} was removed while it was starting.")
    return found
