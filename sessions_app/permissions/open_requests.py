"""The open permission requests and questions of a session, as a batch of journal lines changes them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from executors_app.orm import PreparedQuery
from sessions_app.attention.models import update_wording
from sessions_app.attention.rules import notices
from sessions_app.kernel.rules.json_size import json_size
from sessions_app.kernel.rules.states import PermissionState
from sessions_app.models import PermissionRequest, SessionTransaction, Turn
from sessions_app.waits.models import TOOL_CALL_CHANGED, replace_wait_key

_DETAIL_FIELDS: Final = ("title", "tool_kind", "content", "locations", "raw_input")
"""Fields of a tool call that a person needs to see before answering a permission request."""
_EMPTY_VALUES: Final[tuple[object, ...]] = (None, "", [], {})
OPEN_REQUESTS = PreparedQuery(
    lambda key: PermissionRequest.objects.filter(session_id=key, state=PermissionState.PENDING).values_list(
        "id", "run_id", "tool_key", "size"
    )
)
MAX_OPEN_REQUESTS: Final = 100
"""Permission requests and questions that a session may have open; an agent that leaves more open is stopped."""
MAX_OPEN_BYTES: Final = 16 << 20
"""Size of all open requests of a session together; a single one may have the size of a line."""


def complete_tool_call(requested: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool call of a permission request, with its empty fields filled in from what the log knows."""
    more = {
        name: known[name]
        for name in _DETAIL_FIELDS
        if known.get(name) not in _EMPTY_VALUES and requested.get(name) in _EMPTY_VALUES
    }
    return {**requested, **more}


def request_size(request: PermissionRequest) -> int:
    """Return what is stored in ``PermissionRequest.size``."""
    return json_size(request.tool_call) + json_size(request.options) + json_size(request.question)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a batch needs to know of an open request without reading it."""

    id: str
    run_id: uuid.UUID | None
    tool_key: str
    size: int


def changed_details(earlier: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields that a person has to see and that replace other ones: the call is no longer the same."""
    return {
        name: values[name]
        for name in _DETAIL_FIELDS
        if values.get(name) not in _EMPTY_VALUES
        and earlier.get(name) not in _EMPTY_VALUES
        and values[name] != earlier[name]
    }


class OpenRequests:
    """The open permission requests of a session, looked up at most once for a batch of lines.

    An agent can leave long ones open, and report about another tool call in each line. So only those are read whose
    tool call a line reports.
    """

    def __init__(self, transaction: SessionTransaction):
        self._transaction = transaction
        self._rows: dict[str, PermissionRequest] = {}
        """Those that were read or made, by id."""
        self._has_new_key: set[str] = set()

    @cached_property
    def _open(self) -> dict[str, OpenRequest]:
        rows = OPEN_REQUESTS.values(self._transaction.session.id)
        return {request_id: OpenRequest(request_id, *values) for request_id, *values in rows}

    def of_tool(self, key: str) -> Collection[OpenRequest]:
        """Return the requests that show a tool call of any turn."""
        return [request for request in self._open.values() if request.tool_key == key]

    def has_room_for(self, size: int) -> bool:
        """Whether another request of ``size`` bytes may be open."""
        if not self._open:
            return True
        used = sum(request.size for request in self._open.values())
        return len(self._open) < MAX_OPEN_REQUESTS and used + size <= MAX_OPEN_BYTES

    def add(self, row: PermissionRequest) -> None:
        """Add a request that this batch has made."""
        self._open[row.id] = OpenRequest(row.id, row.run_id, row.tool_key, row.size)
        self._rows[row.id] = row

    def remove(self, row: PermissionRequest) -> None:
        """Remove a request that this batch has settled."""
        self._open.pop(row.id, None)

    def update(self, run: Turn, key: str, known: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """Add to the requests of a turn what the agent has since reported about their tool call.

        ``changed`` are the fields that it has replaced. Whoever read the earlier ones has not consented to these, so
        the request gets another key.
        """
        for request in self.of_tool(key):
            if request.run_id != run.id:
                continue
            row = self._read(request.id)
            tool_call = {**complete_tool_call(row.tool_call, known), **changed}
            if tool_call == row.tool_call:
                continue
            row.tool_call = tool_call
            row.size = request_size(row)
            row.save(update_fields=["tool_call", "size"])
            self.add(row)
            update_wording(notices.request_notice(row.id, tool_call, row.question))
            if changed and row.id not in self._has_new_key:
                self._has_new_key.add(row.id)  # nobody can have read the new key before the batch is committed
                replace_wait_key(self._transaction, row.id, TOOL_CALL_CHANGED)

    def _read(self, request_id: str) -> PermissionRequest:
        if request_id not in self._rows:
            self._rows[request_id] = PermissionRequest.objects.get(id=request_id)
        return self._rows[request_id]
