"""Parts of addresses that the pages and the API of several topics share."""

from __future__ import annotations

from typing import Final

TASK: Final = "tasks/<uuid:task_id>/"
SESSION: Final = f"{TASK}sessions/<uuid:session_id>/"
