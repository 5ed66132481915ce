"""Start the container of an execution (found, restarted or created), and run short-lived helper containers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from django.conf import settings

from executors_app.machine.git import workspace_root
from executors_app.machine.process import spawning
from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.connection import DockerConfig
from executors_app.runtimes.containers.engine import Container, Engine, EngineRefused
from executors_app.runtimes.containers.sites import HOME_PATH, SEED_PATH, STATE_PATH, ContainerSetup, Site
from executors_app.wire.errors import LaunchFailed
from executors_app.wire.executions import LaunchSpec
from executors_app.wire.protocol import EXECUTION_MARKER
from executors_app.workspace_store import state_directory_of

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
    port = container.ports.get(AGENTCTL_PORT) if container else None
    if container and port and container.status == "running":
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
    return {
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": config.memory_mb << 20,
        "memswap_limit": config.memory_mb << 20,  # memory and swap together: no swap
        "pids_limit": config.pids,
        **({"nano_cpus": round(config.cpus * 1e9)} if config.cpus else {}),
        "log_config": _LOG_LIMIT,
    }


def _options(spec: LaunchSpec, image: str, setup: ContainerSetup) -> dict[str, Any]:
    """Return what the container runs, and as which user."""
    command = [
        *("--workspace", str(setup.worktree.path)),
        *("--state-dir", STATE_PATH),
        *("--session-id", spec.session_id),
        *(("--worktree-of", spec.worktree_id) if spec.worktree_id else ()),
        *("--execution-id", spec.execution_id),
        *("--token-file", f"{STATE_PATH}/token"),
        *("--seed", SEED_PATH),
        *("--root", str(setup.root)),
        *("--listen", f"0.0.0.0:{AGENTCTL_PORT}"),
        *("--run-as", setup.user),
    ]
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


_HELPER_TIMEOUT: Final = 900.0
"""Seconds that a helper may run."""
MAX_HELPER_SECONDS: Final = 2 * _HELPER_TIMEOUT
"""Seconds after which a helper counts as abandoned; its results are copied in the second half."""


@dataclass(frozen=True, slots=True)
class HelperContainer:
    """A short-lived container for one execution, without network and capabilities."""

    execution_id: str
    session_id: str
    config: DockerConfig
    user: str
    mounts: Sequence[Mapping[str, Any]]

    @contextmanager
    def created(self, engine: Engine, purpose: str, arguments: Sequence[str] = ()) -> Iterator[str]:
        """Create the container, yield its name, and remove it afterwards.

        Blocks; raises EngineRefused, RuntimeUnavailable.
        """
        name = f"{sites.container_name(self.execution_id)}-{purpose}"
        remove = partial(engine.find_any, lambda client: client.remove_container(name, force=True))
        remove()  # it was left by a killed process: the caller's lock excludes other users
        options = {
            "image": image_name(self.config),
            "entrypoint": ["python3", "-P", "-m", workspace_root.__name__],
            "command": list(arguments),
            "user": self.user,
            "labels": sites.helper_labels(self.execution_id, self.session_id),
        }
        host = {
            **confinement_options(self.config),
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "mounts": list(self.mounts),
            "init": True,
        }
        engine.create(name, options, host)
        try:
            yield name
        finally:
            remove()

    def run(self, engine: Engine, name: str) -> dict[str, Any]:
        """Start it and return its answer; raises WorkspaceGone, RepositoryUnusable, LaunchFailed."""
        engine.start(name)
        engine.ask(lambda client: client.wait(name, timeout=_HELPER_TIMEOUT))
        said = engine.output_tail(name)
        return workspace_root.checked_answer(said, f"The workspace could not be prepared: {said}")
