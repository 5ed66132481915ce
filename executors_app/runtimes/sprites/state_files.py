"""Copy the state of an agentctl out of its sprite."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Final

from executors_app.runtimes.sprites import organisation
from executors_app.runtimes.sprites.organisation import open_organisation
from executors_app.wire import journal_files
from executors_app.wire.errors import LaunchFailed, RuntimeUnavailable

_MOST_FILES: Final = 10_000
_FILES: Final = re.compile(
    rf"token\.json|journal/(?:{journal_files.ASIDE}/[0-9A-Za-z_-]{{1,64}}/)?(?:{journal_files.META_FILE}|\d{{20}}\.jsonl)"
)


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
        _unpack(packed.output, into)
    except (tarfile.TarError, ValueError, OSError) as error:
        raise LaunchFailed(f"agentctl's files in the sprite cannot be read: {error}") from error
    return True


def _unpack(packed: bytes, into: Path) -> None:
    """Write only plain files with names that agentctl uses; the first of each name counts."""
    # "r:" reads no compressed archive, which could unfold to any size.
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        for number, entry in enumerate(archive):
            if number == _MOST_FILES:
                raise ValueError(f"it contains more than {_MOST_FILES} files")
            # A sparse file could claim a size far beyond the bytes that were sent.
            if not entry.isreg() or entry.issparse() or not _FILES.fullmatch(entry.name):
                continue
            source, target = archive.extractfile(entry), into / entry.name
            if source is None or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())
