"""What a dead agentctl has left in its sprite: journal and token, fetched to be read here."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from executors_app.errors import RuntimeUnavailable
from executors_app.sprites import names
from executors_app.sprites.api import connected


async def fetch(execution_id: str, into: Path) -> bool:
    """Put ``journal/`` and ``token.json`` of its state into a directory; False where there is none.

    Raises RuntimeUnavailable. The sprite is woken for it.
    """
    name, state = names.name_of(execution_id), names.root_of(execution_id) / "state"
    async with connected() as api:
        sprite = await api.find(name)
        if sprite is None or not names.is_ours(sprite.labels):
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
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed.output)) as archive:
        archive.extractall(into, filter="data")
    return True
