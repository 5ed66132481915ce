"""The images of the cluster's nodes, built without a registry from this machine's own files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

from tests.docker import engine as engines
from tests.docker import machine_image

PAUSE: Final = "kandev-pause:test"
"""What holds the network of each Pod."""
# A first process that handles no SIGTERM would be waited for, ten seconds for each Pod.
_PAUSE_DOCKERFILE: Final = f'FROM {machine_image.NAME}:test\nSTOPSIGNAL SIGKILL\nENTRYPOINT ["sleep", "infinity"]\n'


def provide(nodes: Sequence[engines.HasClient]) -> None:
    """Build the images on the first node and copy them to the others."""
    first, *others = nodes
    client = first.client(timeout=300)
    try:
        engines.build_image(first)
        progress = list(client.build(fileobj=io.BytesIO(_PAUSE_DOCKERFILE.encode()), tag=PAUSE, rm=True, decode=True))
        assert not [line for line in progress if "error" in line], progress[-3:]
        for other in others:
            copy(client, other, engines.IMAGE, PAUSE)
    finally:
        client.close()


def copy(source: Any, target: engines.HasClient, *names: str) -> None:
    """Copy images from an engine, given by its client, to a node."""
    client = target.client(timeout=300)
    try:
        for name in names:
            list(client.load_image(source.get_image(name)))
    finally:
        client.close()
