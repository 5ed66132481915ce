"""What a dead agentctl has left in its sprite: journal and token, fetched to be read here.

A sprite is wholly its agent's, so the archive may be anything. Only plain files are taken from it, at the names that
are asked for: links could lead to files of this machine, and Python's own filter of archives had holes.
"""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Final

from executors_app.agentctl import journal_files
from executors_app.errors import LaunchFailed, RuntimeUnavailable
from executors_app.sprites import names
from executors_app.sprites.api import connected

_MOST_FILES: Final = 10_000
_FILES: Final = re.compile(
    rf"token\.json|journal/(?:{journal_files.ASIDE}/[0-9A-Za-z_-]{{1,64}}/)?(?:{journal_files.META}|\d{{20}}\.jsonl)"
)


async def fetch(execution_id: str, into: Path) -> bool:
    """Put ``journal/`` and ``token.json`` of its state into a directory; False where there is none.

    Raises RuntimeUnavailable, LaunchFailed for an archive that cannot be read. The sprite is woken for it.
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
    try:
        _unpack(packed.output, into)
    except (tarfile.TarError, ValueError, OSError) as error:
        raise LaunchFailed(f"What agentctl has left in its sprite cannot be read: {error}") from error
    return True


def _unpack(packed: bytes, into: Path) -> None:
    """Write the plain files that have a name of agentctl's; the first of each name counts."""
    # "r:" reads no compressed archive, which could unfold to any size.
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        for number, entry in enumerate(archive):
            if number == _MOST_FILES:
                raise ValueError(f"it has more than {_MOST_FILES} files")
            # A sparse file claims a size that nobody has sent.
            if not entry.isreg() or entry.issparse() or not _FILES.fullmatch(entry.name):
                continue
            source, target = archive.extractfile(entry), into / entry.name
            if source is None or target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read())
