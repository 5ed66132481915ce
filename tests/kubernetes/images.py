"""The images of the cluster's nodes, built without a registry from this machine's own files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from tests.docker import engine as engines
from tests.docker import machine_image

PAUSE: Final = "kandev-pause:test"
"""What holds the network of each Pod."""
# A first process that handles no SIGTERM would be waited for, ten seconds for each Pod.
_PAUSE_DOCKERFILE: Final = f'FROM {machine_image.NAME}:test\nSTOPSIGNAL SIGKILL\nENTRYPOINT ["sleep", "infinity"]\n'


class Machine(engines.HasClient, Protocol):
    """A machine with a Docker engine."""

    def wait_for_engine(self) -> None:
        """Wait until the engine answers."""
        ...


def provide(machines: Sequence[Machine]) -> None:
    """Build the images on every machine: faster than to copy them from one to the others."""
    machine_image.archive()  # once for all
    with ThreadPoolExecutor() as each:
        list(each.map(_build, machines))


def _build(machine: Machine) -> None:
    machine.wait_for_engine()
    engines.build_image(machine)
    client = machine.client(timeout=300)
    try:
        progress = list(client.build(fileobj=io.BytesIO(_PAUSE_DOCKERFILE.encode()), tag=PAUSE, rm=True, decode=True))
        assert not [line for line in progress if "error" in line], progress[-3:]
        for name in (engines.IMAGE, PAUSE):
            # A node with a full disk removes images, and there is no registry to get them from again.
            client.create_container(name)
    finally:
        client.close()
