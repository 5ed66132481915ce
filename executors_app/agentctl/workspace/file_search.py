"""Search the names of the files of a workspace that git does not ignore. All calls block."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Final

from executors_app.agentctl.workspace.paths import open_path
from executors_app.machine.git.workspace_git import WorkspaceGit
from executors_app.wire.path_search import PathIndex
from executors_app.wire.protocol import ApiError

_LIST_LIMIT: Final = 8 << 20
_TIMEOUT: Final = 10.0
_FRESH: Final = 5.0
"""Seconds for which the same listing is searched again, because people type several letters."""
_LISTING: Final = ("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")


class FileSearch:
    """Searches one workspace; of several requests at once, one lists the files and the others wait for it."""

    def __init__(self, git: WorkspaceGit):
        self._git, self._lock = git, threading.Lock()
        self._index = PathIndex()
        self._listed_at = float("-inf")

    def search(self, query: str) -> dict[str, Any]:
        """Return ``{query, entries: [{path, type}], truncated}``, the best first; raises ApiError."""
        with self._lock:
            if time.monotonic() - self._listed_at > _FRESH:
                output = self._git.run(*_LISTING, limit=_LIST_LIMIT, timeout=_TIMEOUT)
                self._index = PathIndex.from_listing(output.fields, truncated=output.truncated)
                self._listed_at = time.monotonic()
            index = self._index
        answer = index.search(query)
        answer["entries"] = [entry for entry in answer["entries"] if self._exists(entry["path"])]
        return answer

    def _exists(self, path: str) -> bool:
        """Whether a path that git has listed is there: git also lists files that were deleted."""
        folder, _, name = path.rstrip("/").rpartition("/")
        try:
            with open_path(self._git.root, folder, os.O_DIRECTORY) as descriptor:
                os.lstat(name, dir_fd=descriptor)
        except (ApiError, OSError):
            return False
        return True
