"""The API server of the stand-in: the requests that the runtime sends, over HTTP on the loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import WSMsgType, web

from tests.kubernetes.standin import answers
from tests.kubernetes.standin.answers import Refused
from tests.kubernetes.standin.defaults import DEFAULTS
from tests.kubernetes.standin.kubelet import NODES, Nodes, RunningPod
from tests.kubernetes.standin.patches import json_patched, merged
from tests.kubernetes.standin.store import Filter, Object, Store, field_selector, selector, timestamp

T = TypeVar("T")

NAMESPACE: Final = "kandev-sessions"
TOKEN: Final = "the-token-of-a-service-account"
ADMIN_TOKEN: Final = "the-token-of-an-administrator"
PROTOCOL: Final = "v4.channel.k8s.io"
USER_NAME: Final = "system:serviceaccount:kandev-sessions:kandev"
BOOKMARK_SECONDS: Final = 5.0
_EVERYTHING: Final = "*"
ROLE: Final = {
    "pods": {"create", "get", "list", "watch", "delete", "patch"},
    "pods/log": {"get"},
    "namespaces": {"get"},
    "pods/portforward": {"get", "create"},
    "persistentvolumeclaims": {"create", "get", "list", "patch", "delete"},
    "secrets": {"create", "get", "list", "delete"},
}
"""What the Role of the control plane allows in its namespace."""


@dataclass
class User:
    """Whom a token belongs to, and what that user may do."""

    name: str
    rights: dict[str, set[str]]
    namespace: str = ""
    """The only namespace of these rights; empty: all."""

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Return whether a Role allows it."""
        if _EVERYTHING in self.rights:
            return True
        return verb in self.rights.get(resource, set()) and self.namespace in ("", namespace)


@dataclass
class Quota:
    """A ResourceQuota of the namespace."""

    name: str
    hard: dict[str, int] = field(default_factory=dict)


class ApiServer:
    """The server, and the objects and nodes behind it. It belongs to one event loop."""

    def __init__(self, nodes_home: Path, *, forgets_ends: bool, cleanup_seconds: float) -> None:
        self.url = ""
        self.calls: list[str] = []
        """Every request, as VERB RESOURCE."""
        self.quota = Quota("none")
        self.users = {
            TOKEN: User(USER_NAME, copy.deepcopy(ROLE), NAMESPACE),
            ADMIN_TOKEN: User("kubernetes-admin", {_EVERYTHING: set()}),
        }
        self.store = Store()
        self.nodes = Nodes(self.store, nodes_home, forgets_ends=forgets_ends, cleanup_seconds=cleanup_seconds)
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._lists: dict[str, list[Object]] = {}

    # -- the server

    async def start(self) -> None:
        """Listen, on the same port as before."""
        app = web.Application(middlewares=[self._answer], client_max_size=8 << 20)
        base, one = "/api/v1/namespaces/{namespace}/{resource}", "/api/v1/namespaces/{namespace}/{resource}/{name}"
        app.add_routes(
            [
                web.get("/version", self.version),
                web.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self.review),
                web.get("/api/v1/nodes", self.list_nodes),
                web.get("/api/v1/nodes/{name}", self.get_node),
                web.get("/api/v1/namespaces/{name}", self.get_namespace),
                web.get("/api/v1/{resource:pods|persistentvolumeclaims|secrets|events}", self.list_objects),
                web.get(base, self.list_objects),
                web.post(base, self.create),
                web.delete(base, self.delete_collection),
                web.get(one, self.get),
                web.delete(one, self.delete),
                web.patch(one, self.patch),
                web.get(f"{one}/log", self.log),
                web.get(f"{one}/portforward", self.portforward),
                web.post(f"{one}/eviction", self.evict_pod),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """End every connection, and listen no longer. Pods continue."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for known in self.nodes.pods.values():
                for tunnel in list(known.tunnels):
                    await tunnel.close()
            await runner.cleanup()

    @web.middleware
    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            self._authorize(request, self._user(request))
            answer: web.StreamResponse = await handler(request)
        except Refused as refused:
            return web.json_response(refused.status, status=refused.code)
        return answer

    def _user(self, request: web.Request) -> User:
        """Return whose token a request has; raises Refused."""
        user = self.users.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if user is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def _authorize(self, request: web.Request, user: User) -> None:
        parts = request.path.split("/")
        resource, namespace = request.match_info.get("resource", ""), request.match_info.get("namespace", "")
        name = request.match_info.get("name", "")
        if request.path.startswith("/api/v1/nodes"):
            resource = "nodes"
        elif not resource and namespace == "" and name:
            resource, namespace = "namespaces", name
        if not resource:
            return
        if name and parts[-1] != name:
            resource = f"{resource}/{parts[-1]}"
        verb = _verb(request, bool(name))
        self.calls.append(f"{verb} {resource}")
        if not user.may(verb, resource, namespace):
            raise answers.forbidden(user.name, verb, resource, name, namespace)

    # -- objects

    async def version(self, request: web.Request) -> web.Response:
        """``GET /version``."""
        return web.json_response({"major": "1", "minor": "20", "gitVersion": "v1.20.2", "platform": "linux/amd64"})

    async def review(self, request: web.Request) -> web.Response:
        """``POST selfsubjectaccessreviews``: may I?"""
        body, user = await request.json(), self._user(request)
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        allowed = user.may(asked["verb"], resource, asked.get("namespace", ""))
        made = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}}
        return web.json_response(made | {"spec": body["spec"], "status": {"allowed": allowed}}, status=201)

    async def list_nodes(self, request: web.Request) -> web.Response:
        """``GET nodes``."""
        items = [self._node(name) for name in NODES]
        return web.json_response(
            {"kind": "NodeList", "apiVersion": "v1", "metadata": self._list_version(), "items": items}
        )

    async def get_node(self, request: web.Request) -> web.Response:
        """``GET nodes/{name}``."""
        name = request.match_info["name"]
        if name not in NODES:
            raise answers.not_found("nodes", name)
        return web.json_response({"kind": "Node", "apiVersion": "v1"} | self._node(name))

    async def get_namespace(self, request: web.Request) -> web.Response:
        """``GET namespaces/{name}``."""
        name = request.match_info["name"]
        if name != NAMESPACE:
            raise answers.not_found("namespaces", name)
        metadata = {"name": name, "uid": "5a1c4b8e-0000-4000-8000-000000000001"}
        made = {"kind": "Namespace", "apiVersion": "v1", "metadata": metadata, "status": {"phase": "Active"}}
        return web.json_response(made)

    async def list_objects(self, request: web.Request) -> web.StreamResponse:
        """``GET .../{resource}``: a list, a page of it, or a watch."""
        if request.query.get("watch", "") in ("1", "true", "True"):
            return await self._watch(request)
        resource, query = request.match_info["resource"], request.query
        start, version = 0, str(self.store.version)
        if query.get("continue"):
            start, version = self._continued(query["continue"])
            found = self._lists[query["continue"]]
        else:
            found = [one for one in self.store.items(resource, _namespace(request)) if _filter(request)(one)]
        limit = int(query.get("limit") or 0) or len(found)
        metadata: dict[str, Any] = {"resourceVersion": version}
        if start + limit < len(found):
            mark = base64.urlsafe_b64encode(json.dumps([start + limit, version]).encode()).decode()
            self._lists[mark] = found
            metadata["continue"] = mark
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata["remainingItemCount"] = len(found) - start - limit
        items = found[start : start + limit]
        for one in items:
            del one["kind"], one["apiVersion"]
        kind = f"{answers.KINDS[resource]}List"
        return web.json_response({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})

    def _continued(self, mark: str) -> tuple[int, str]:
        start, version = json.loads(base64.urlsafe_b64decode(mark))
        if int(version) < self.store.oldest or mark not in self._lists:
            message = (
                "The provided continue parameter is too old to display a consistent list result. You can start a new "
                "list without the continue parameter, or use the continue token in this response to retrieve the "
                "remainder of the results. Continuing with the provided token results in an inconsistent list - "
                "objects that were created, modified, or deleted between the time the first chunk was returned and now "
                "may show up in the list."
            )
            raise Refused(410, "Expired", message)
        return start, version

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        resource, namespace, query = request.match_info["resource"], _namespace(request), request.query
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)

        async def send(kind: str, found: Mapping[str, Any]) -> None:
            await answer.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

        wanted, since = _filter(request), query.get("resourceVersion", "")
        version = int(since or 0)
        if version == 0:
            version = self.store.version
            for one in self.store.items(resource, namespace):
                if wanted(one):
                    await send("ADDED", one)
        try:
            await self._follow(request, version, send)
        except LookupError as error:
            await send("ERROR", answers.expired(str(error.args[0])))
        except ConnectionError:
            pass
        return answer

    async def _follow(
        self, request: web.Request, version: int, send: Callable[[str, Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        """Send the changes after a version until the watch's time is over; raises LookupError."""
        resource, query = request.match_info["resource"], request.query
        end = time.monotonic() + float(query.get("timeoutSeconds") or 3600)
        bookmark_at = time.monotonic() + BOOKMARK_SECONDS
        async for event in self.store.watch(version, resource, _namespace(request), _filter(request)):
            if event is not None:
                await send(*event)
            if time.monotonic() > end:
                return
            if event is None and query.get("allowWatchBookmarks") and time.monotonic() > bookmark_at:
                bookmark_at = time.monotonic() + BOOKMARK_SECONDS
                await send("BOOKMARK", self._bookmark(resource))

    def _bookmark(self, resource: str) -> Object:
        metadata = {"resourceVersion": str(self.store.version), "creationTimestamp": None}
        return {"kind": answers.KINDS[resource], "apiVersion": "v1", "metadata": metadata}

    async def create(self, request: web.Request) -> web.Response:
        """``POST .../{resource}``."""
        resource, namespace = request.match_info["resource"], request.match_info["namespace"]
        given = await request.json()
        if namespace != NAMESPACE:
            raise answers.not_found("namespaces", namespace)
        made = DEFAULTS[resource](given)
        self._check_quota(resource, made["metadata"]["name"])
        made = self.store.create(resource, namespace, made)
        if resource == "pods":
            self.nodes.run(made)
        if resource == "persistentvolumeclaims":
            asyncio.get_running_loop().call_soon(self.nodes.bind, made)
        return web.json_response(made, status=201)

    def _check_quota(self, resource: str, name: str) -> None:
        limit = self.quota.hard.get(resource)
        if limit is None or self.store.find(resource, NAMESPACE, name) is not None:
            return
        ended = ("Succeeded", "Failed")
        used = [one for one in self.store.items(resource) if one.get("status", {}).get("phase") not in ended]
        if len(used) >= limit:
            numbers = (f"{resource}=1", f"{resource}={len(used)}", f"{resource}={limit}")
            raise answers.over_quota(resource, name, self.quota.name, *numbers)

    async def get(self, request: web.Request) -> web.Response:
        """``GET .../{name}``."""
        return web.json_response(self._find(request))

    async def delete(self, request: web.Request) -> web.Response:
        """``DELETE .../{name}``: gracefully, and only the object that is meant."""
        body = await request.text()
        options = json.loads(body) if body else {}
        if "gracePeriodSeconds" in request.query:
            options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
        return web.json_response(self._delete(request.match_info["resource"], self._find(request), options))

    async def delete_collection(self, request: web.Request) -> web.Response:
        """``DELETE .../{resource}``: all that a selector selects."""
        resource = request.match_info["resource"]
        found = [one for one in self.store.items(resource, _namespace(request)) if _filter(request)(one)]
        for one in found:
            self._delete(resource, one, {})
        kind = f"{answers.KINDS[resource]}List"
        return web.json_response({"kind": kind, "apiVersion": "v1", "metadata": self._list_version(), "items": found})

    def _delete(self, resource: str, found: Object, options: Mapping[str, Any]) -> Object:
        metadata = found["metadata"]
        wanted = (options.get("preconditions") or {}).get("uid") or metadata["uid"]
        if wanted != metadata["uid"]:
            raise answers.other_uid(resource, metadata["name"], wanted, metadata["uid"])
        version = (options.get("preconditions") or {}).get("resourceVersion") or metadata["resourceVersion"]
        if version != metadata["resourceVersion"]:
            raise answers.stale(resource, metadata["name"])
        if resource == "pods":
            return self.delete_pod(found, options)
        if metadata.get("finalizers"):
            if "deletionTimestamp" not in metadata:
                metadata |= {"deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": 0}
                self.store.update(resource, found)
                self.nodes.start_task(self._release(found))
            return found
        self.store.remove(resource, found)
        return answers.success(metadata["name"], resource, metadata["uid"])

    def delete_pod(self, pod: Object, options: Mapping[str, Any]) -> Object:
        """Delete a Pod gracefully, or at once with a grace period of 0; return its object."""
        metadata, spec = pod["metadata"], pod["spec"]
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = spec["terminationGracePeriodSeconds"]
        if not spec.get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
            grace = 0
        is_shorter = grace < metadata.get("deletionGracePeriodSeconds", 1 << 30)
        if "deletionTimestamp" not in metadata or is_shorter:
            metadata |= {"deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": grace}
        if grace == 0 and not metadata.get("finalizers"):
            self.store.remove("pods", pod)
        else:
            self.store.update("pods", pod)
        self.nodes.end(pod, max(grace, 1))
        return pod

    async def _release(self, claim: Object) -> None:
        """Remove a claim that is being deleted when no Pod uses it any more."""
        name, namespace, uid = (claim["metadata"][key] for key in ("name", "namespace", "uid"))

        def is_unused() -> bool:
            return not any(_uses(pod, name) for pod in self.store.items("pods", namespace))

        await self.store.wait_for(is_unused)
        found = self.store.find("persistentvolumeclaims", namespace, name)
        if found is not None and found["metadata"]["uid"] == uid:
            self.store.remove("persistentvolumeclaims", found)
            await asyncio.to_thread(shutil.rmtree, self.nodes.home / "volumes" / uid, ignore_errors=True)

    async def patch(self, request: web.Request) -> web.Response:
        """``PATCH .../{name}``: a JSON patch or a merge patch."""
        resource, found, patch = request.match_info["resource"], self._find(request), await request.json()
        metadata = dict(found["metadata"])
        if request.content_type == "application/json-patch+json":
            changed = json_patched(found, patch)
        else:
            changed = merged(found, patch)
        self._check_identity(resource, metadata, changed["metadata"])
        if not changed["metadata"].get("finalizers"):
            changed["metadata"].pop("finalizers", None)
            if changed["metadata"].get("deletionGracePeriodSeconds") == 0:
                self.store.remove(resource, self._find(request))
                return web.json_response(changed)
        return web.json_response(self.store.update(resource, changed))

    def _check_identity(self, resource: str, metadata: Object, changed: Object) -> None:
        """Refuse a change of another object, or from a version that is not the last one."""
        if changed["uid"] != metadata["uid"]:
            raise answers.immutable_uid(resource, metadata["name"], changed["uid"])
        if changed["resourceVersion"] != metadata["resourceVersion"]:
            raise answers.stale(resource, metadata["name"])

    async def evict_pod(self, request: web.Request) -> web.Response:
        """``POST .../eviction``: what a drain asks for, a graceful deletion."""
        pod = self.store.get("pods", request.match_info["namespace"], request.match_info["name"])
        self.delete_pod(pod, {})
        made = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return web.json_response(made, status=201)

    def _find(self, request: web.Request) -> Object:
        place = request.match_info
        return self.store.get(place["resource"], place["namespace"], place["name"])

    def _list_version(self) -> dict[str, str]:
        return {"resourceVersion": str(self.store.version)}

    def _node(self, name: str) -> Object:
        ready = "Unknown" if name in self.nodes.unreachable else "True"
        return {
            "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }

    # -- inside a Pod

    def _reached(self, request: web.Request) -> RunningPod:
        """Return a Pod on its node; raises Refused if the kubelet cannot be reached."""
        name = request.match_info["name"]
        pod = self._find(request)
        node = pod["spec"].get("nodeName")
        if not node:
            raise Refused(400, "BadRequest", f"pod {name} does not have a host assigned")
        if node in self.nodes.unreachable or pod["metadata"]["uid"] not in self.nodes.pods:
            raise Refused(500, "", f"error dialing backend: dial tcp: no route to host {node}")
        return self.nodes.pods[pod["metadata"]["uid"]]

    async def log(self, request: web.Request) -> web.Response:
        """``GET .../log``: the end of a container's output."""
        pod = self._find(request)
        if not pod["spec"].get("nodeName"):
            return web.Response(status=204)
        known = self._reached(request)
        container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        statuses = pod["status"].get("containerStatuses") or []
        waiting = next((one["state"].get("waiting") for one in statuses if one["name"] == container), None)
        if waiting:
            message = f'container "{container}" in pod "{known.name}" is waiting to start: {waiting["reason"]}'
            if waiting["reason"] in ("ErrImagePull", "ImagePullBackOff"):
                message = message.replace(waiting["reason"], "trying and failing to pull image")
            raise Refused(400, "BadRequest", message)
        file = known.directory / f"{container}.log"
        text = file.read_text(errors="replace") if file.exists() else ""
        if request.query.get("tailLines"):
            text = "".join(text.splitlines(keepends=True)[-int(request.query["tailLines"]) :])
        if request.query.get("limitBytes"):
            text = text[: int(request.query["limitBytes"])]
        return web.Response(text=text)

    async def portforward(self, request: web.Request) -> web.WebSocketResponse:
        """``GET .../portforward``: the first byte names the channel; 0 is data and 1 errors of the first port."""
        known = self._reached(request)
        port = int(request.query["ports"])
        if known.container is None:
            raise Refused(500, "", "container not running")
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        known.tunnels.add(socket)
        try:
            reader, writer = await asyncio.open_connection(known.address, port)
        except OSError as error:
            message = f"error forwarding port {port} to pod {known.name}, uid {known.uid}: {error.strerror}"
            await socket.send_bytes(b"\x01" + message.encode())
            await socket.close()
            known.tunnels.discard(socket)
            return socket
        outwards = asyncio.create_task(_send_outwards(reader, socket))
        try:
            async for frame in socket:
                if frame.type is WSMsgType.BINARY and frame.data[:1] == b"\x00":
                    writer.write(frame.data[1:])
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            # Nothing is awaited here: aiohttp cancels a handler whose client has gone.
            known.tunnels.discard(socket)
            outwards.cancel()
            writer.close()
        return socket


async def _send_outwards(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 15):
            await socket.send_bytes(b"\x00" + chunk)
        await socket.close()


def _verb(request: web.Request, is_named: bool) -> str:
    """Return the verb of a request, as Roles name it."""
    if request.method == "GET":
        if request.query.get("watch", "") in ("1", "true", "True"):
            return "watch"
        return "get" if is_named else "list"
    if request.method == "DELETE" and not is_named:
        return "deletecollection"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _namespace(request: web.Request) -> str:
    return request.match_info.get("namespace", "")


def _filter(request: web.Request) -> Filter:
    labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    has_labels, has_fields = selector(labels), field_selector(fields)
    return lambda one: has_labels(one) and has_fields(one)


def _uses(pod: Object, claim: str) -> bool:
    volumes = pod["spec"].get("volumes") or ()
    return any(one.get("persistentVolumeClaim", {}).get("claimName") == claim for one in volumes)
