"""Calls to the API server about one namespace, through the official client; each raises our errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import aiohttp
import orjson

from executors_app.agentctl_client.cluster_access import ClusterAddress, add_credentials, open_cluster_client
from executors_app.runtimes.kubernetes import names, words
from executors_app.runtimes.kubernetes.words import ConflictError, NotFoundError

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

CALL_TIMEOUT: Final = 30.0
_ANSWER_LIMIT: Final = 64 << 20
"""Bytes of one answer: a list of a thousand Pods has about ten million."""
_EVENT_LIMIT: Final = 4 << 20
_LOG_LIMIT: Final = 64 << 10
_PAGE: Final = 500
_MOST_OBJECTS: Final = 50_000
"""Of one list."""
_LIST_LIMIT: Final = 128 << 20
"""Bytes of all pages of one list."""
_MERGE: Final = "application/merge-patch+json"

PODS, CLAIMS, SECRETS = "pods", "persistentvolumeclaims", "secrets"
RIGHTS: Final[Sequence[tuple[str, str]]] = (
    *(("pods", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(("persistentvolumeclaims", verb) for verb in ("create", "get", "list", "patch", "delete")),
    *(("secrets", verb) for verb in ("create", "list", "delete")),
    ("pods/log", "get"),
    ("namespaces", "get"),
)
"""What the credentials must allow, as resource and verb; ``TUNNEL_RIGHTS`` come on top outside of the cluster."""
TUNNEL_RIGHTS: Final[Sequence[tuple[str, str]]] = (("pods/portforward", "get"), ("pods/portforward", "create"))


class Cluster:
    """One namespace of a cluster; see ``open_cluster``."""

    def __init__(self, client: ApiClient, namespace: str):
        self._client, self.namespace = client, namespace

    async def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object; None if there is none."""
        try:
            return await self._ask("GET", self._path(kind, name), f"get {kind}")
        except NotFoundError:
            return None

    async def list_all(
        self, kind: str, labels: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[list[dict[str, Any]], str]:
        """Return this deployment's objects of a kind, and the version from which a watch continues.

        ``labels``: only those that have them, too. Raises ClusterListTooLarge rather than return a part, in which
        something would seem to be absent.
        """
        found: list[dict[str, Any]] = []
        budget = _LIST_LIMIT
        params = {"labelSelector": names.selector(labels), "limit": str(_PAGE)}
        while True:
            content = await self._read("GET", self._path(kind), f"list {kind}", params)
            budget -= len(content)
            if budget < 0:
                raise words.list_too_large(self.namespace, kind)
            page = _parse(content)
            for entry in page.get("items") or []:
                (entry.get("metadata") or {}).pop("managedFields", None)  # half of each object, and of no use here
                found.append(entry)
            if len(found) > _MOST_OBJECTS:
                raise words.list_too_large(self.namespace, kind)
            about = page.get("metadata") or {}
            if not about.get("continue"):
                return found, str(about.get("resourceVersion", ""))
            params["continue"] = about["continue"]

    async def create(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; raises ConflictError if the name is taken, ClusterNamespaceMissing without a namespace."""
        try:
            return await self._ask("POST", self._path(kind), f"create {kind}", body=body)
        except NotFoundError as error:
            raise words.namespace_missing(self.namespace) from error

    async def require_namespace(self) -> None:
        """Raise ClusterNamespaceMissing if the namespace does not exist."""
        try:
            await self._ask("GET", f"/api/v1/namespaces/{self.namespace}", "get namespaces")
        except NotFoundError as error:
            raise words.namespace_missing(self.namespace) from error

    async def mark(
        self,
        kind: str,
        entry: Mapping[str, Any],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Set annotations and labels of an object that was not changed since it was read.

        Raises ConflictError if it was.
        """
        about = entry["metadata"]
        change = {"resourceVersion": about["resourceVersion"], "annotations": dict(annotations), "labels": dict(labels)}
        return await self._patch(kind, about["name"], {"metadata": change})

    async def release(self, kind: str, entry: Mapping[str, Any], finalizer: str) -> None:
        """Remove a finalizer of an object that was not changed since it was read, so that it can go.

        Raises ConflictError if it was changed, also if another object has its name, and NotFoundError if it is gone.
        """
        about = entry["metadata"]
        rest = [one for one in about.get("finalizers") or [] if one != finalizer]
        # No uid: that of another object would be refused as a change of its uid, not as a conflict. The version is
        # enough, because two objects never have the same.
        change = {"metadata": {"resourceVersion": about["resourceVersion"], "finalizers": rest}}
        await self._patch(kind, about["name"], change)

    async def delete_unchanged(self, kind: str, entry: Mapping[str, Any]) -> None:
        """Delete an object gracefully if it was not changed since it was read. Nothing happens if it has gone.

        Raises ConflictError if it was changed, also if another object has its name by now.
        """
        about = entry["metadata"]
        await self._delete(kind, about["name"], {"uid": about["uid"], "resourceVersion": about["resourceVersion"]})

    async def delete(self, kind: str, name: str, uid: str = "") -> None:
        """Delete an object gracefully; with ``uid`` only that one. Nothing happens if it has gone.

        The grace period is never shortened: an object that vanishes early would prove nothing.
        """
        if uid:
            with suppress(ConflictError):
                await self._delete(kind, name, {"uid": uid})
        else:
            await self._delete(kind, name, {})

    async def _delete(self, kind: str, name: str, preconditions: Mapping[str, str]) -> None:
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if preconditions:
            body["preconditions"] = dict(preconditions)
        with suppress(NotFoundError):
            await self._ask("DELETE", self._path(kind, name), f"delete {kind}", body=body)

    async def log_tail(self, pod: str, container: str, lines: int = 20) -> str:
        """Return the last lines of a container's output, which is untrusted; empty if there are none."""
        params = {"container": container, "tailLines": str(lines), "limitBytes": str(_LOG_LIMIT)}
        try:
            response = await self._send("GET", f"{self._path(PODS, pod)}/log?{urlencode(params)}", None, "")
            async with response:
                if response.status != 200:
                    return ""
                output = bytearray()
                async for part in response.content.iter_any():
                    output += part
                    if len(output) > _LOG_LIMIT:
                        break
                return output[:_LOG_LIMIT].decode(errors="replace").strip()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return ""

    async def namespace_uid(self) -> str:
        """Return what distinguishes this namespace from one of the same name elsewhere; empty if it is not shown."""
        try:
            found = await self._ask("GET", f"/api/v1/namespaces/{self.namespace}", "get namespaces")
        except (NotFoundError, words.ClusterRoleTooSmall):
            return ""
        return str(found["metadata"]["uid"])

    async def may_be(self, uid: str) -> bool:
        """Whether this may be the namespace of that uid: one that is not shown may be it, one that is not there not."""
        try:
            found = await self._ask("GET", f"/api/v1/namespaces/{self.namespace}", "get namespaces")
        except NotFoundError:
            return False
        except (words.ClusterRoleTooSmall, words.ClusterLoginRefused):
            return True
        return bool(found["metadata"]["uid"] == uid)

    async def is_out_of_service(self, node: str) -> bool:
        """Whether a person has declared a node to be shut down for good; False if nodes are not shown to us."""
        try:
            found = await self._ask("GET", f"/api/v1/nodes/{quote(node)}", "get nodes")
        except (NotFoundError, words.ClusterRoleTooSmall):
            return False
        taints = (found.get("spec") or {}).get("taints") or []
        return any(one.get("key") == "node.kubernetes.io/out-of-service" for one in taints)

    async def missing_rights(self, rights: Sequence[tuple[str, str]]) -> list[str]:
        """Return those of the rights that our credentials lack, such as ``watch pods``."""

        async def lacks(resource: str, verb: str) -> bool:
            resource, _, sub = resource.partition("/")
            attributes = {"namespace": self.namespace, "verb": verb, "resource": resource, "subresource": sub}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
            answer = await self._ask("POST", path, "ask for rights", body=body)
            return not (answer.get("status") or {}).get("allowed")

        lacking = await asyncio.gather(*(lacks(resource, verb) for resource, verb in rights))
        return [
            f"{verb} {resource}" for (resource, verb), is_lacking in zip(rights, lacking, strict=True) if is_lacking
        ]

    async def watch(self, kind: str, version: str, seconds: int) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the changes of this deployment's objects after a list, as type and object, for some seconds.

        Raises GoneError if the version is too old: list again then.
        """
        params = {
            "labelSelector": names.selector(),
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        url = f"{self._path(kind)}?{urlencode(params)}"
        try:
            async with asyncio.timeout(seconds + CALL_TIMEOUT):
                response = await self._send("GET", url, None, "", timeout=seconds + CALL_TIMEOUT)
                async with response:
                    if response.status != 200:
                        raise await self._refusal(response, f"watch {kind}")
                    async for line in _lines(response):
                        event = _parse(line)
                        entry = event.get("object") or {}
                        if event.get("type") == "ERROR":
                            said = entry.get("message", "")
                            raise words.refusal(int(entry.get("code") or 500), said, f"watch {kind}", self.namespace)
                        yield str(event.get("type")), entry
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unavailable(error) from error

    async def _patch(self, kind: str, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        return await self._ask("PATCH", self._path(kind, name), f"patch {kind}", body=change, content_type=_MERGE)

    def _path(self, kind: str, name: str = "") -> str:
        path = f"/api/v1/namespaces/{self.namespace}/{kind}"
        if name:
            path += f"/{quote(name)}"
        return path

    async def _ask(
        self,
        method: str,
        path: str,
        what: str,
        params: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        return _parse(await self._read(method, path, what, params, body=body, content_type=content_type))

    async def _read(
        self,
        method: str,
        path: str,
        what: str,
        params: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        if params:
            path += f"?{urlencode(params)}"
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                response = await self._send(method, path, body, content_type)
                async with response:
                    if not 200 <= response.status < 300:
                        raise await self._refusal(response, what)
                    return await _read(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unavailable(error) from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout: float = CALL_TIMEOUT,
    ) -> aiohttp.ClientResponse:
        headers: dict[str, str] = {**self._client.default_headers, "Accept": "application/json"}
        if content_type:
            headers["Content-Type"] = content_type
        await add_credentials(self._client, headers)
        url = f"{self._client.configuration.host}{path}"
        limits = aiohttp.ClientTimeout(total=timeout)
        rest: Any = self._client.rest_client  # has no types
        answer = await rest.request(method, url, headers, body, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _refusal(self, response: aiohttp.ClientResponse, what: str) -> Exception:
        try:
            said = _parse(await _read(response)).get("message", "")
        except words.ClusterUnavailable:
            said = ""
        return words.refusal(response.status, said, what, self.namespace)


@asynccontextmanager
async def open_cluster(address: ClusterAddress, namespace: str) -> AsyncIterator[Cluster]:
    """Connect to a namespace; raises RuntimeUnavailable."""
    async with open_cluster_client(address) as client:
        yield Cluster(client, namespace)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > _ANSWER_LIMIT:
            raise words.ClusterUnavailable("The cluster's answer is too large.")
    return bytes(body)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for part in response.content.iter_any():
        rest += part
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        if len(rest) > _EVENT_LIMIT:
            raise words.ClusterUnavailable("The cluster's answer is too large.")
        for line in whole:
            if line:
                yield bytes(line)


def _parse(text: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise words.ClusterUnavailable("What answered is not the API server of a cluster.")
    return parsed


def _unavailable(error: Exception) -> words.ClusterUnavailable:
    if isinstance(error, TimeoutError):
        return words.ClusterUnavailable("The cluster did not answer in time.")
    if isinstance(error, aiohttp.ClientSSLError):
        return words.ClusterUnavailable(
            "The cluster's certificate is not trusted. Check certificate-authority in the kubeconfig.",
            for_staff=words.shorten(error),
        )
    return words.ClusterUnavailable(
        "The cluster cannot be reached. Check that its API server runs, and that this machine reaches it.",
        for_staff=words.shorten(error),
    )
