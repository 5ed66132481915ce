"""Play exchanges against a real cluster and write what it answers: ``python -m tests.kubernetes.record DIRECTORY``.

DIRECTORY is that of a running test cluster (``python -m tests.kubernetes status``); names after it record only these.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import docker
import yaml

from tests.kubernetes.exchanges import EXCHANGES, LABEL, Cluster
from tests.kubernetes.standin.api import ROLE
from tests.kubernetes.transcript import Transcript
from tests.waiting import eventually, eventually_async

NAMESPACE: Final = "kandev-recording"
KUBECTL: Final = str(Path(sys.executable).with_name("kubectl"))
RECORDINGS: Final = Path(__file__).with_name("recordings")
_KINDS: Final = ("pods", "persistentvolumeclaims", "secrets")


def session_of(kubeconfig: str) -> aiohttp.ClientSession:
    """Return a session with the server of a kubeconfig, as its user."""
    read = yaml.safe_load(kubeconfig)
    cluster, user = read["clusters"][0]["cluster"], read["users"][0]["user"]
    context: ssl.SSLContext | bool = True
    if cluster["server"].startswith("https"):
        context = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
    headers = {"Authorization": f"Bearer {user['token']}"}
    return aiohttp.ClientSession(cluster["server"], headers=headers, connector=aiohttp.TCPConnector(ssl=context))


async def play(name: str, cluster: Cluster, kubeconfig: str, namespace: str) -> list[dict[str, Any]]:
    """Play one exchange as the user of a kubeconfig; return the steps, and leave nothing behind."""
    async with session_of(kubeconfig) as session:
        await _clean(session, namespace)
        transcript = Transcript(session, namespace)
        try:
            await EXCHANGES[name](transcript, cluster)
        finally:
            await _clean(session, namespace)
    return transcript.steps


async def _clean(session: aiohttp.ClientSession, namespace: str) -> None:
    """Delete what exchanges created, and wait until it is gone."""

    async def left() -> list[str]:
        paths = []
        for kind in _KINDS:
            base = f"/api/v1/namespaces/{namespace}/{kind}"
            async with session.get(base, params={"labelSelector": LABEL}) as answer:
                paths += [f"{base}/{one['metadata']['name']}" for one in (await answer.json())["items"]]
        return paths

    for path in await left():
        async with session.delete(path) as answer:
            await answer.read()

    async def nothing_is_left() -> bool:
        return not await left()

    await eventually_async(nothing_is_left, 180, describe="nothing of an exchange is left")


class RealCluster:
    """The test cluster of this machine, with a namespace of its own for the recordings."""

    storage_class = "kandev-test"

    def __init__(self, directory: Path):
        self._directory = directory
        self._apply(*_objects())
        self.kubeconfig = self._kubeconfig()

    def kill(self, pod: str) -> None:
        """Kill the first process of a Pod with SIGKILL."""
        node = json.loads(self._kubectl("get", "pod", pod, "-o", "json"))["spec"]["nodeName"]
        client = docker.APIClient(base_url=f"unix://{self._directory}/{node}/docker/docker.sock")
        try:
            labels = ["io.kubernetes.docker.type=container", f"io.kubernetes.pod.name={pod}"]
            for one in client.containers(filters={"label": labels}):
                client.kill(one["Id"], "SIGKILL")
        finally:
            client.close()

    def set_quota(self, name: str, hard: Mapping[str, int]) -> None:
        """Limit the objects of the namespace, and wait until the cluster has counted them."""
        limits = {resource: str(number) for resource, number in hard.items()}
        self._apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": limits}})

        def is_counted() -> bool:
            found = json.loads(self._kubectl("get", "resourcequota", name, "-o", "json"))
            return bool(found.get("status", {}).get("used"))

        eventually(is_counted, describe="the quota is counted")

    def remove_quota(self, name: str) -> None:
        """Remove the limit."""
        self._kubectl("delete", "resourcequota", name)

    def close(self) -> None:
        """Delete the namespace."""
        self._kubectl("delete", "namespace", NAMESPACE, "--wait=false")

    def _kubeconfig(self) -> str:
        """Return a kubeconfig of the service account."""

        def tokens() -> list[str]:
            found = json.loads(self._kubectl("get", "secrets", "-o", "json"))["items"]
            owner = "kubernetes.io/service-account.name"
            mine = [one for one in found if one["metadata"].get("annotations", {}).get(owner) == "kandev"]
            return [base64.b64decode(one["data"]["token"]).decode() for one in mine]

        (token,) = eventually(tokens, describe="the service account has a token")
        read = yaml.safe_load(self._admin.read_text())
        read["users"] = [{"name": "kandev", "user": {"token": token}}]
        return json.dumps(read)

    @property
    def _admin(self) -> Path:
        return self._directory / "kubeconfig"

    def _apply(self, *manifests: Mapping[str, Any]) -> None:
        for one in manifests:
            self._kubectl("apply", "--validate=false", "-f", "-", text=json.dumps(one))

    def _kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator, which must succeed; return its output."""
        command = [KUBECTL, f"--kubeconfig={self._admin}", f"--namespace={NAMESPACE}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


def _objects() -> list[dict[str, Any]]:
    """Return the namespace, and the service account with the Role that the stand-in's user has too."""
    rbac, metadata = "rbac.authorization.k8s.io", {"name": "kandev", "namespace": NAMESPACE}
    rules = [{"apiGroups": [""], "resources": [name], "verbs": sorted(verbs)} for name, verbs in ROLE.items()]
    reference = {"apiGroup": rbac, "kind": "Role", "name": "kandev"}
    subject = {"kind": "ServiceAccount", "name": "kandev", "namespace": NAMESPACE}
    binding = {"roleRef": reference, "subjects": [subject]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": metadata} | binding,
    ]


def write(name: str, steps: list[dict[str, Any]]) -> None:
    """Write one recording."""
    RECORDINGS.mkdir(exist_ok=True)
    (RECORDINGS / f"{name}.json").write_text(json.dumps(steps, indent=1, ensure_ascii=False) + "\n")


def read(name: str) -> list[dict[str, Any]]:
    """Return the steps of one recording."""
    steps: list[dict[str, Any]] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return steps


def main(directory: Path, names: list[str]) -> int:
    """Record all exchanges, or those that are named; return the number of those that failed."""
    cluster, failed = RealCluster(directory), 0
    for name in names or EXCHANGES:
        try:
            steps = asyncio.run(play(name, cluster, cluster.kubeconfig, NAMESPACE))
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"{name}: {error}\n")
            continue
        write(name, steps)
        sys.stdout.write(f"{name}: {len(steps)} steps\n")
        sys.stdout.flush()
    cluster.close()
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
