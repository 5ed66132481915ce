"""Short-lived containers that work on the volumes of an execution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from executors_app.machine.git import workspace_root
from executors_app.runtimes.containers import sites
from executors_app.runtimes.containers.config import DockerConfig
from executors_app.runtimes.containers.engine import Engine
from executors_app.runtimes.containers.launch import confinement_options, image_name

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
        output = engine.output_tail(name)
        return workspace_root.checked_answer(output, f"The workspace could not be prepared: {output}")
