"""Brings the one container of an execution up: found, started again, or made; everything follows from the ids.

A stopped container is started again. It is made anew only where it was made from something else than is wanted
now (another image, other limits) or has lost its network: what counts is on mounts, not in the container.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.conf import settings

from executors_app.agentctl import child_environment
from executors_app.agentctl.protocol import MARKER
from executors_app.containers import names as docker_names
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Container, Engine, EngineRefused
from executors_app.containers.site import HOME, SEED, STATE, Ground, Site
from executors_app.domain import LaunchSpec
from executors_app.errors import LaunchFailed
from executors_app.local_disk import places_of

PORT: Final = 8700
"""Where agentctl listens in its container; published at a port that changes with every start."""
_SCRATCH: Final = "rw,exec,nosuid,nodev,mode=1777,size=1g"
_LOG_LIMIT: Final = {"type": "json-file", "config": {"max-size": "10m", "max-file": "2"}}


@dataclass(frozen=True, slots=True)
class Up:
    """A container that runs, which says nothing yet of the agentctl in it."""

    container: Container
    ground: Ground
    found: bool
    """It ran already."""


def url_of(container: Container | None, host: str) -> str | None:
    """Where the agentctl of a container can be asked; None where it does not run or publishes no port (yet)."""
    port = container.ports.get(PORT) if container else None
    return f"http://{host}:{port}" if container and port and container.status == "running" else None


def image_of(config: DockerConfig) -> str:
    """The image's name."""
    return config.image or str(settings.KANDEV_AGENTCTL_IMAGE)


def bring_up(engine: Engine, site: Site, spec: LaunchSpec, lost: str = "") -> Up:
    """The execution's container, running. Blocks.

    ``lost``: why the workspace has to be made again from what has arrived; empty if it has not. LaunchFailed,
    RuntimeUnavailable, WorkspaceGone, RepositoryUnusable, OSError.
    """
    places = places_of(spec.execution_id)
    places.make()
    with places.one_start():
        container = engine.find(docker_names.name_of(spec.execution_id))
        if container is not None and not docker_names.is_owned(container.labels, spec.execution_id, spec.session_id):
            raise LaunchFailed(f"The container {container.name} is not this session's; it is left alone.")
        lives = container is not None and container.status in ("running", "restarting", "paused")
        ground = site.ground(engine, spec, lives=lives, lost=lost)
        if container is not None and container.status == "paused":
            engine.unpause(container.id)
            container = _again(engine, container.name)
        if container is not None and lives:
            return Up(container, ground, found=True)
        return Up(_start(engine, container, _Wanted(engine, spec, site, ground)), ground, found=False)


class _Wanted:
    """What a container of this execution would be made from now."""

    def __init__(self, engine: Engine, spec: LaunchSpec, site: Site, ground: Ground):
        self.config, self.execution_id, self.ground = site.config, spec.execution_id, ground
        self.name = docker_names.name_of(spec.execution_id)
        image = image_of(site.config)
        self.host = _host(self.name, site, ground)
        self.options = _options(spec, image, ground)
        parts = [engine.image_id(image), self.host, self.options]
        made_from = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        self.labels = docker_names.labels_of(spec.execution_id, spec.session_id, spec.task_id)
        self.spec = hashlib.sha256(made_from).hexdigest()[:16]

    def fits(self, container: Container, network: str) -> bool:
        """Whether a stopped container can be started as it is."""
        has = container.networks.get(self.name, "")
        whole = container.status in ("created", "exited")
        return whole and container.labels.get(docker_names.SPEC) == self.spec and has in ("", network)


def _host(name: str, site: Site, ground: Ground) -> dict[str, Any]:
    """How the container stands on its host: what it may not, how much it may, what it sees."""
    return {
        "network_mode": name,
        "port_bindings": {PORT: (site.publish,)},
        "cap_drop": ["ALL"],
        "cap_add": ["SETGID", "SETPCAP", "SETUID"],  # to become two users; agentctl gives them up
        **confined(site.config),
        "read_only": True,
        "tmpfs": dict.fromkeys(("/tmp", "/var/tmp", "/run"), _SCRATCH),  # noqa: S108 - the container's
        "restart_policy": {"Name": "no"},
        "mounts": list(ground.mounts),
    }


def confined(config: DockerConfig) -> dict[str, Any]:
    """What holds for every container of an executor."""
    return {
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": config.memory_mb << 20,
        "memswap_limit": config.memory_mb << 20,
        "pids_limit": config.pids,
        **({"nano_cpus": round(config.cpus * 1e9)} if config.cpus else {}),
        "log_config": _LOG_LIMIT,
    }


def _options(spec: LaunchSpec, image: str, ground: Ground) -> dict[str, Any]:
    """Files and children are the worktree's owner's. Without capabilities even 0 is a number like others."""
    command = [
        *("--workspace", str(ground.worktree.path)),
        *("--state-dir", STATE),
        *("--session-id", spec.session_id),
        *(("--worktree-of", spec.worktree_id) if spec.worktree_id else ()),
        *("--execution-id", spec.execution_id),
        *("--token-file", f"{STATE}/token"),
        *("--seed", SEED),
        *("--root", str(ground.root)),
        *("--listen", f"0.0.0.0:{PORT}"),
        *("--run-as", ground.user),
    ]
    return {
        "image": image,
        "command": command,
        "environment": {MARKER: spec.execution_id, child_environment.SESSION: spec.session_id},
        "user": "0:0",
        "working_dir": HOME,
        "ports": [PORT],
    }


def _start(engine: Engine, container: Container | None, wanted: _Wanted) -> Container:
    network = _network(engine, wanted)
    if container is not None and not wanted.fits(container, network):
        engine.remove(container.id)
        container = None
    if container is None:
        engine.create(
            wanted.name, {**wanted.options, "labels": {**wanted.labels, docker_names.SPEC: wanted.spec}}, wanted.host
        )
    elif wanted.name not in container.networks:
        engine.connect(container.id, network)
    wanted.ground.before_start(engine, wanted.name)
    engine.start(wanted.name)
    return _again(engine, wanted.name)


def _network(engine: Engine, wanted: _Wanted) -> str:
    """The execution's own network; where a subnet is taken, the next one is tried."""
    if found := engine.network(wanted.name):
        return found
    refusal: EngineRefused | None = None
    for subnet in wanted.config.networks_for(wanted.execution_id):
        try:
            return engine.make_network(wanted.name, wanted.labels, subnet)
        except EngineRefused as error:
            refusal = error
    raise LaunchFailed(
        f"The Docker engine has no free network addresses ({refusal}): give the executor subnets of its own."
    )


def _again(engine: Engine, name: str) -> Container:
    found = engine.find(name)
    if found is None:
        raise LaunchFailed(f"The container {name} was removed while it was starting.")
    return found
