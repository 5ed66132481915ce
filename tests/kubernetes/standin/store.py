"""The objects of the stand-in, their versions, and the changes that watches report."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tests.kubernetes.standin import answers

Object = dict[str, Any]
Filter = Callable[[Object], bool]

KEPT_CHANGES: Final = 5000
"""Changes that a watch may still ask for; older versions are answered with 410."""


def timestamp() -> str:
    """Return the time as the API writes it: whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object."""

    version: int
    resource: str
    namespace: str
    before: Object | None
    """The object as it was; None: the change created it."""
    after: Object | None
    """The object as it is; None: the change removed it."""
    last: Object
    """The object that a watch shows."""


class Store:
    """All objects. It belongs to one event loop."""

    def __init__(self) -> None:
        self.version = 1000
        self.oldest = 1000
        """Changes up to this version are forgotten."""
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._changes: list[Change] = []
        self._changed = asyncio.Event()

    def find(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return a copy of an object."""
        return copy.deepcopy(self._objects.get((resource, namespace, name)))

    def get(self, resource: str, namespace: str, name: str) -> Object:
        """Return a copy of an object; raises Refused."""
        found = self.find(resource, namespace, name)
        if found is None:
            raise answers.not_found(resource, name)
        return found

    def items(self, resource: str, namespace: str = "") -> list[Object]:
        """Return copies of all objects of a kind, of one namespace or of all, by name."""
        keys = sorted(key for key in self._objects if key[0] == resource and namespace in ("", key[1]))
        return [copy.deepcopy(self._objects[key]) for key in keys]

    def create(self, resource: str, namespace: str, given: Mapping[str, Any]) -> Object:
        """Store a new object; raises Refused."""
        made = copy.deepcopy(dict(given))
        metadata = made.setdefault("metadata", {})
        name = metadata["name"]
        before = self._objects.get((resource, namespace, name))
        if before is not None:
            raise answers.already_exists(resource, name, is_terminating="deletionTimestamp" in before["metadata"])
        made |= {"kind": answers.KINDS[resource], "apiVersion": "v1"}
        metadata |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        self._record(resource, namespace, None, made)
        return copy.deepcopy(made)

    def update(self, resource: str, changed: Object) -> Object:
        """Store an object that exists, unless nothing in it changed."""
        namespace, name = changed["metadata"]["namespace"], changed["metadata"]["name"]
        before = self._objects.get((resource, namespace, name))
        if before is None or before["metadata"]["uid"] != changed["metadata"]["uid"]:
            raise answers.not_found(resource, name)
        changed["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        if changed != before:
            self._record(resource, namespace, before, copy.deepcopy(changed))
        return changed

    def remove(self, resource: str, gone: Object) -> None:
        """Remove an object for good, if it is still the same one."""
        namespace, name = gone["metadata"]["namespace"], gone["metadata"]["name"]
        before = self._objects.get((resource, namespace, name))
        if before is None or before["metadata"]["uid"] != gone["metadata"]["uid"]:
            return
        self.version += 1
        last = copy.deepcopy(gone)
        last["metadata"]["resourceVersion"] = str(self.version)
        del self._objects[resource, namespace, name]
        self._announce(Change(self.version, resource, namespace, before, None, last))

    def forget_changes(self) -> None:
        """Forget all changes so far, as a server does after some minutes: watches from before are expired."""
        self.version += 1
        self.oldest = self.version
        self._changes.clear()

    def changes_after(self, version: int, resource: str, namespace: str) -> list[Change]:
        """Return later changes of objects of a kind; raises LookupError if they are no longer stored."""
        if version < self.oldest:
            raise LookupError(f"too old resource version: {version} ({self.oldest})")
        return [
            one
            for one in self._changes
            if one.version > version and one.resource == resource and namespace in ("", one.namespace)
        ]

    async def wait(self, timeout: float) -> None:
        """Wait until something changes, for at most ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return

    async def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition on the objects holds."""
        while not is_so():
            await self.wait(0.5)

    async def watch(
        self, version: int, resource: str, namespace: str, wanted: Filter
    ) -> AsyncIterator[tuple[str, Object] | None]:
        """Yield what a watch shows of later changes, and None while nothing changes; raises LookupError."""
        while True:
            changes = self.changes_after(version, resource, namespace)
            for change in changes:
                version = change.version
                kind = _event_type(change, wanted)
                if kind:
                    yield kind, copy.deepcopy(change.last)
            if not changes:
                await self.wait(0.5)
                yield None

    def _record(self, resource: str, namespace: str, before: Object | None, after: Object) -> None:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        self._objects[resource, namespace, after["metadata"]["name"]] = after
        self._announce(Change(self.version, resource, namespace, before, after, after))

    def _announce(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > KEPT_CHANGES:
            self.oldest = self._changes.pop(0).version
        self._changed.set()
        self._changed = asyncio.Event()


def _event_type(change: Change, wanted: Filter) -> str:
    """Return the type of a watch event; an object that leaves a selection is deleted for its watchers."""
    was = change.before is not None and wanted(change.before)
    now = change.after is not None and wanted(change.after)
    if now:
        return "MODIFIED" if was else "ADDED"
    return "DELETED" if was else ""


def selector(text: str) -> Filter:
    """Return the filter of a ``labelSelector``: equalities, sets and existence."""
    terms = [_label_term(term) for term in _split(text)]
    return lambda one: all(term(one["metadata"].get("labels") or {}) for term in terms)


def field_selector(text: str) -> Filter:
    """Return the filter of a ``fieldSelector``."""
    terms = [term.replace("==", "=").partition("=") for term in text.split(",") if term]

    def is_wanted(one: Object) -> bool:
        for path, _, value in terms:
            negated, name = path.endswith("!"), path.rstrip("!")
            if (_field(one, name.split(".")) == value) is negated:
                return False
        return True

    return is_wanted


def _field(one: Any, path: Iterable[str]) -> str:
    for step in path:
        one = one.get(step) if isinstance(one, dict) else None
    return "" if one is None else str(one)


def _split(text: str) -> list[str]:
    """Split at the commas that are in no parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _label_term(term: str) -> Callable[[Mapping[str, str]], bool]:
    for word, is_in in ((" notin ", False), (" in ", True)):
        name, found, values = term.partition(word)
        if found:
            allowed = {value.strip() for value in values.strip().strip("()").split(",")}
            return lambda labels: (labels.get(name.strip()) in allowed) is is_in
    if "!=" in term:
        name, _, value = term.partition("!=")
        return lambda labels: labels.get(name.strip()) != value.strip()
    if "=" in term:
        name, _, value = term.replace("==", "=").partition("=")
        return lambda labels: labels.get(name.strip()) == value.strip()
    if term.startswith("!"):
        return lambda labels: term[1:].strip() not in labels
    return lambda labels: term in labels
