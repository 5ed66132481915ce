"""Copy the state of an agentctl out of its sprite."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from executors_app.runtimes.fetched_state import unpack_state
from executors_app.runtimes.sprites import organisation
from executors_app.runtimes.sprites.organisation import open_organisation
from executors_app.wire.errors import LaunchFailed, RuntimeUnavailable


async def fetch_state(execution_id: str, into: Path) -> bool:
    """Copy ``journal/`` and ``token.json`` of agentctl's state into a directory; False if there is none.

    Wakes the sprite. Raises RuntimeUnavailable, and LaunchFailed for an archive that cannot be read.
    """
    name, state = organisation.sprite_name(execution_id), organisation.sprite_root(execution_id) / "state"
    async with open_organisation() as api:
        sprite = await api.find(name)
        if sprite is None or not organisation.is_ours(sprite.labels):
            return False
        script = (
            'cd "$0" 2>/dev/null && set -- journal && test -e token.json && set -- journal token.json; tar -cf - "$@"'
        )
        try:
            packed = await api.run(name, "sh", "-c", script, str(state))
        except TimeoutError as error:
            raise RuntimeUnavailable("The sprite did not answer in time.") from error
    if packed.exit_code:
        return False
    try:
        unpack_state(io.BytesIO(packed.output), into)
    except (tarfile.TarError, ValueError, OSError) as error:
        raise LaunchFailed(f"agentctl's files in the sprite cannot be read: {error}") from error
    return True
