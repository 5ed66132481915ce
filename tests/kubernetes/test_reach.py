"""How Pods are reached, and that nobody else pays for the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from executors_app.agentctl_client.cluster_access import ClusterAddress
from executors_app.agentctl_client.pod_tunnel import ADDRESS_LIMIT, PodAddress, pod_in_host
from executors_app.agentctl_client.tunnels import is_tunnelled, tunnel_host_header
from executors_app.models import ExecutorRunning
from executors_app.runtimes.kubernetes import names
from executors_app.runtimes.kubernetes.config import KubernetesConfig
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.runtimes.kubernetes.reach import pod_token, pod_url
from executors_app.wire.launch_tokens import launch_nonce
from tests.kubernetes.objects import SECRET, SESSION, pod_object
from tests.services import ROOT


def test_url_of_a_pod_names_it_in_every_process_and_fits_into_its_column() -> None:
    longest = "/" + "k" * (ADDRESS_LIMIT - 21)
    pod = PodAddress(ClusterAddress(longest, "Arn:aws/Context_1@x:y"[:20]), "n" * 63, f"kandev-{SESSION}")
    url = pod.url(8700)
    assert pod_in_host(urlsplit(url).hostname) == pod
    column: Any = ExecutorRunning._meta.get_field("agentctl_url")
    assert len(url) <= column.max_length
    assert tunnel_host_header(url) == {"Host": "localhost:8700"}


@pytest.mark.parametrize("host", [None, "", "example.org", "10.0.0.1", "a.b.!!!.pod.invalid", "a.b.ff.pod.invalid"])
def test_other_hosts_are_no_pods(host: str | None) -> None:
    assert pod_in_host(host) is None
    assert not is_tunnelled(host)


def test_pod_has_its_address_inside_the_cluster_and_a_tunnel_outside() -> None:
    inside, outside = KubernetesConfig(), KubernetesConfig(kubeconfig="/k")
    assert pod_url(inside, pod_object(podIP="10.1.2.3")) == "http://10.1.2.3:8700"
    assert pod_url(inside, pod_object(podIP="fd00::1")) == "http://[fd00::1]:8700"
    assert pod_url(inside, pod_object()) == ""
    assert pod_url(inside, pod_object(podIP="attacker.example/?")) == "", "others may write a Pod's status"
    assert pod_url(outside, pod_object()).endswith(".pod.invalid:8700")


def test_client_of_clusters_is_imported_only_where_it_is_used(tmp_path: Path) -> None:
    """It takes a second and 45 MB."""
    code = "import django, sys; django.setup(); from executors_app import plugins; plugins.runtimes()['kubernetes']\n"
    code += "import executors_app.agentctl_client.client; sys.exit('kubernetes' in sys.modules)"
    environment = {"DJANGO_SETTINGS_MODULE": "kandev.settings", "PATH": "/usr/bin", "PYTHONPATH": str(ROOT)}
    environment["KANDEV_DATA_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("nonce", [None, "", "x", "A" * 32, ["a" * 32], "a" * 33])
def test_pod_whose_nonce_somebody_has_changed_gets_no_token_that_is_valid_anywhere(nonce: Any) -> None:
    pod = pod_object()
    entry = {**pod.entry, "metadata": {**pod.entry["metadata"], "annotations": {names.LAUNCH: nonce}}}
    token = pod_token(Pod(entry), SECRET)
    assert SECRET not in token
    assert launch_nonce(token) == ""
