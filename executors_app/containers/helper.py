"""Short-lived containers beside a session's own: something has to be done to volumes, or read from them, without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from executors_app.agentctl.places import workspace_root
from executors_app.containers import names as docker_names
from executors_app.containers.config import DockerConfig
from executors_app.containers.engine import Engine, EngineRefused
from executors_app.containers.launch import confined, image_of
from executors_app.errors import LaunchFailed

_WITHIN: Final = 900.0
"""Seconds that it may run."""
LONGEST: Final = 2 * _WITHIN
"""Seconds after which one was left behind by a kill: what it has made is copied within the second half."""


@dataclass(frozen=True, slots=True)
class Helper:
    """For one execution: has no network, no power, and ends by itself."""

    execution_id: str
    session_id: str
    config: DockerConfig
    user: str
    mounts: Sequence[Mapping[str, Any]]

    @contextmanager
    def made(self, engine: Engine, purpose: str, arguments: Sequence[str] = ()) -> Iterator[str]:
        """Its name; it is made, not started, and removed afterwards. Blocks; EngineRefused, RuntimeUnavailable."""
        name = f"{docker_names.name_of(self.execution_id)}-{purpose}"
        self._remove(engine, name)  # of one who died over it: nobody else is at it
        options = {
            "image": image_of(self.config),
            "entrypoint": ["python3", "-P", "-m", workspace_root.__name__],
            "command": list(arguments),
            "user": self.user,
            "labels": docker_names.helper_labels_of(self.execution_id, self.session_id),
        }
        host = {
            **confined(self.config),
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "mounts": list(self.mounts),
            "init": True,
        }
        engine.create(name, options, host)
        try:
            yield name
        finally:
            self._remove(engine, name)

    def run(self, engine: Engine, name: str) -> dict[str, Any]:
        """Start it and wait for its answer; WorkspaceGone, RepositoryUnusable, LaunchFailed."""
        engine.start(name)
        engine.ask(lambda client: client.wait(name, timeout=_WITHIN))
        said = engine.last_words(name)
        try:
            answer = orjson.loads(said.splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise LaunchFailed(f"The workspace could not be prepared: {said}") from error
        if not isinstance(answer, dict):
            raise LaunchFailed(f"The workspace could not be prepared: {said}")
        if "error" in answer:
            raise workspace_root.error_of(answer)
        return answer

    @staticmethod
    def _remove(engine: Engine, name: str) -> None:
        try:
            engine.ask(lambda client: client.remove_container(name, force=True))
        except EngineRefused as error:
            if error.status != 404:
                raise
