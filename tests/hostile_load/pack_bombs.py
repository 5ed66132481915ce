"""A workspace that sends packs which are small and expand, again and again: what the supervisor does with them."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from django.conf import settings

from executors_app.repositories.archive import Archive
from executors_app.repositories.object_store import ObjectStore
from executors_app.repositories.team import TeamRepository
from executors_app.wire.errors import BundleRefused
from tests.repositories import hostile_packs
from tests.repositories.workspaces import BRANCH, HEAD, SESSION


def send_bombs(repository: Path, seconds: float) -> Counter[str]:
    """Have bombs of a workspace of the repository checked for so long; return how each kind ended, and how often.

    It runs in a process of its own, with the locks and slots that all processes of the installation share.
    """
    store = ObjectStore.of(Path(settings.KANDEV_DATA_DIR), TeamRepository.open(repository))
    archive = Archive.of(Path(settings.KANDEV_DATA_DIR), SESSION, store)
    store.update()
    archive.begin(BRANCH, store.repository.start_of("main"))
    before, ended = archive.tips()[HEAD], Counter[str]()
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        tree_bomb = hostile_packs.tree_bomb(before, depth=12, width=10)
        deltas = list(hostile_packs.delta_objects(results=200, times=400))
        bombs = {"deltas": (before, deltas), "tree": tree_bomb}
        while time.monotonic() < deadline:
            for name, (commit, objects) in bombs.items():
                sent = hostile_packs.bundle_of(Path(folder), commit, objects)
                try:
                    archive.take_in(sent, BRANCH)
                except BundleRefused:
                    ended[f"pack bomb of {name} refused"] += 1
                else:
                    ended[f"pack bomb of {name} accepted"] += 1
    return ended
