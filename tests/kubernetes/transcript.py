"""Requests to a Kubernetes API, written down with their answers and with the events that a watch showed.

What differs from run to run is replaced: ids, times, versions, addresses and nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp

from tests.waiting import eventually_async

Json = dict[str, Any]

LARGEST_TEXT: Final = 2000
"""Characters of one text in a recording."""
_PROTOCOL: Final = "v4.channel.k8s.io"
_DROPPED: Final = frozenset({"managedFields", "selfLink", "containerID", "imageID"})
_RULES: Final = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"), "ADDRESS"),
    (re.compile(r"\(\d+\)"), "(VERSION)"),
    (re.compile(r"\bnode\d\b"), "NODE"),
    (re.compile(r"kandev-(sessions|recording)"), "NAMESPACE"),
)


def normalised(value: Any, name: str = "") -> Any:
    """Return a value of JSON without what differs from run to run."""
    if isinstance(value, dict):
        return {key: normalised(one, key) for key, one in value.items() if key not in _DROPPED}
    if isinstance(value, list):
        return [normalised(one) for one in value]
    if not isinstance(value, str):
        return value
    if name in ("resourceVersion", "continue", "volumeName", "token", "nodeName"):
        return name.upper() if value else ""
    for pattern, replacement in _RULES:
        value = pattern.sub(replacement, value)
    return value[:LARGEST_TEXT]


def essence(found: Any) -> Any:
    """Return what the runtime reads of an answer's body or of an object: all that a stand-in has to say alike."""
    if not isinstance(found, dict):
        return found
    kind = found.get("kind", "")
    if kind == "Status":
        return {name: found.get(name) for name in ("status", "reason", "message", "code", "details")}
    if kind.endswith("List"):
        metadata = found["metadata"]
        return {
            "kind": kind,
            "items": [essence({"kind": kind.removesuffix("List")} | one) for one in found["items"]],
            "continue": bool(metadata.get("continue")),
            "remainingItemCount": metadata.get("remainingItemCount"),
            "has a version": bool(metadata.get("resourceVersion")),
        }
    if kind == "SelfSubjectAccessReview":
        return {"kind": kind, "allowed": found["status"]["allowed"]}
    return _OBJECTS.get(kind, _named)(found)


def _named(found: Json) -> Json:
    metadata = found.get("metadata", {})
    return {
        "kind": found.get("kind"),
        "name": metadata.get("name"),
        "labels": metadata.get("labels"),
        "is deleted": "deletionTimestamp" in metadata,
        "grace": metadata.get("deletionGracePeriodSeconds"),
        "finalizers": metadata.get("finalizers"),
        "annotations": metadata.get("annotations"),
        "has a uid": bool(metadata.get("uid")),
    }


def _pod(found: Json) -> Json:
    status = found.get("status", {})
    conditions = status.get("conditions") or ()
    unscheduled = [one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"]
    return _named(found) | {
        "has a node": bool(found.get("spec", {}).get("nodeName")),
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "message": status.get("message"),
        "quality": status.get("qosClass"),
        "containers": [_container(one) for one in status.get("containerStatuses") or ()],
        "init containers": [_container(one) for one in status.get("initContainerStatuses") or ()],
        "unscheduled": [[one.get("reason"), one.get("message")] for one in unscheduled],
    }


def _container(status: Json) -> Json:
    state = {name: dict(one or {}) for name, one in status["state"].items()}
    for one in state.values():
        for name in ("startedAt", "finishedAt", "containerID"):
            one.pop(name, None)
        if one.get("reason") == "ErrImagePull":
            one["message"] = "whatever its engine says"
    last = (status.get("lastState") or {}).get("terminated") or {}
    return {
        "name": status["name"],
        "is ready": status["ready"],
        "restarts": status["restartCount"],
        "state": state,
        "before": {name: last.get(name) for name in ("exitCode", "reason", "message")},
    }


def _claim(found: Json) -> Json:
    return _named(found) | {"phase": found["status"].get("phase"), "modes": found["spec"]["accessModes"]}


def _secret(found: Json) -> Json:
    return _named(found) | {"data": found.get("data"), "type": found.get("type")}


def _event(found: Json) -> Json:
    return {"reason": found["reason"], "message": found["message"], "type": found["type"]}


_OBJECTS: Final[Mapping[str, Callable[[Json], Json]]] = {
    "Pod": _pod,
    "PersistentVolumeClaim": _claim,
    "Secret": _secret,
    "Event": _event,
}


class Transcript:
    """Sends the requests of one user in one namespace, and writes down what came of them."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str):
        self._session = session
        self.namespace = namespace
        self.steps: list[Json] = []
        self.events: list[Json] = []
        """What a watch showed so far, raw."""

    # -- requests

    async def request(
        self,
        method: str,
        path: str,
        body: Json | list[Json] | None = None,
        *,
        content_type: str = "application/json",
        **query: Any,
    ) -> Any:
        """Send a request and write it down; return the answer's body. ``path`` may begin in the namespace."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if body is not None else {}
        async with self._session.request(method, self._path(path), params=query, data=data, headers=headers) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
        found = json.loads(text) if is_json else text
        request = normalised({"method": method, "path": path, "query": query, "body": body})
        self.steps.append({"request": request, "status": answer.status, "answer": normalised(found)})
        return found

    async def tunnel(self, pod: str, port: int, sent: bytes) -> None:
        """Write down what a port of a Pod answers through a tunnel: the first line of the data, and errors."""
        channels: dict[str, bytes] = {"0": b"", "1": b""}
        path = self._path(f"pods/{pod}/portforward")
        opened: list[list[int]] = []
        async with self._session.ws_connect(path, params={"ports": port}, protocols=(_PROTOCOL,)) as socket:
            for _ in range(2):
                frame = await socket.receive_bytes(timeout=30)
                opened.append([frame[0], int.from_bytes(frame[1:3], "little")])
            with contextlib.suppress(ConnectionError):  # a refused port may be closed already
                await socket.send_bytes(b"\x00" + sent)
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    channels[str(message.data[0])] += message.data[1:]
                if b"\r\n" in channels["0"] or channels["1"]:
                    break
            protocol = socket.protocol
        data = channels["0"].partition(b"\r\n")[0].decode()
        error = bool(channels["1"])
        self.steps.append(
            {"tunnel": [pod, port], "protocol": protocol, "opened": opened, "data": data, "is refused": error}
        )

    # -- watches

    async def watch_until(self, done: Callable[[list[Json]], bool], work: Callable[[], Any], selector: str) -> None:
        """Watch Pods from now on while ``work`` runs, until ``done`` of the events; write the events down."""
        listed = await self._get("pods", labelSelector=selector)
        self.events = []
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "allowWatchBookmarks": "true",
        }
        reading = asyncio.create_task(self._read(query))
        try:
            await work()
            await eventually_async(lambda: done(self.events), 180, describe="the watch shows what is waited for")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        self.steps.append({"watch": selector, "events": distinct(self.events)})

    async def expired_watch(self) -> None:
        """Write down what a watch from a version long ago shows."""
        path, query = self._path("pods"), {"watch": "true", "resourceVersion": "1"}
        async with self._session.get(path, params=query) as answer:
            line = json.loads(await answer.content.readline())
        self.steps.append({"expired watch": normalised(line), "status": answer.status})

    async def until(self, name: str, is_so: Callable[[Json], bool], resource: str = "pods") -> Json:
        """Wait until an object is as wanted; return it. Nothing is written down."""
        found: Json = {}

        async def look() -> bool:
            nonlocal found
            found = await self._get(f"{resource}/{name}")
            return is_so(found)

        await eventually_async(look, 180, describe=f"{name} is as wanted")
        return found

    async def until_up(self, pod: str) -> Json:
        """Wait until a Pod's program has said that it is up; return the Pod. Nothing is written down."""

        async def is_up() -> bool:
            async with self._session.get(self._path(f"pods/{pod}/log")) as answer:
                return "up" in (await answer.text()).splitlines()

        await eventually_async(is_up, 180, describe=f"the Pod {pod} is up")
        return await self.until(pod, lambda found: found["status"]["phase"] == "Running")

    async def _read(self, query: Mapping[str, str]) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._path("pods"), params=query, timeout=timeout) as answer:
            async for line in answer.content:
                self.events.append(json.loads(line))

    async def _get(self, path: str, **query: str) -> Json:
        async with self._session.get(self._path(path), params=query) as answer:
            found: Json = await answer.json()
        return found

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"/api/v1/namespaces/{self.namespace}/{path}"


def distinct(events: list[Json]) -> list[Json]:
    """Return what events say to the runtime, without bookmarks and without those that repeat the one before."""
    said: list[Json] = []
    for event in events:
        if event["type"] == "BOOKMARK":
            continue
        one = normalised({"type": event["type"], "object": essence(event["object"])})
        if not said or said[-1] != one:
            said.append(one)
    return said


def compared(step: Json) -> Json:
    """Return what must be the same in a recording and on a stand-in."""
    if "answer" in step:
        return {"request": step["request"], "status": step["status"], "answer": essence(step["answer"])}
    return step
