"""The objects of a session: valid for today's schemas, and confined whatever staff add."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from executors_app.runtimes.kubernetes import manifests, names
from executors_app.runtimes.kubernetes.config import KubernetesConfig, read_kubernetes_config
from executors_app.runtimes.kubernetes.pod_state import Pod
from executors_app.wire.launch_tokens import launch_nonce, mint_launch_token
from tests.kubernetes.objects import EXECUTION, SECRET, SESSION, as_id, execution_facts, launch_spec

TOKEN = mint_launch_token(SECRET)
EVERYTHING = {
    "namespace": "agents",
    "image": "registry.example/agentctl:1",
    "image_pull_policy": "Always",
    "pull_secrets": "one,two",
    "cpus": 2,
    "storage_class": "fast",
    "access_mode": "ReadWriteOncePod",
    "service_account": "agents",
    "node_selector": {"example.com/disk": "ssd"},
    "pod": {
        "annotations": {"example.com/team": "blue"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "low",
        "runtimeClassName": "gvisor",
        "volumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
        "volumeMounts": [{"name": "certificates", "mountPath": "/srv/certificates", "readOnly": True}],
    },
}


def objects(config: KubernetesConfig) -> dict[str, dict[str, Any]]:
    """Return every object that sessions have in a cluster."""
    labels = names.execution_labels(EXECUTION, SESSION, "")
    return {
        "claim": manifests.claim(config, launch_spec()),
        "secret": manifests.token_secret(labels, TOKEN),
        "pod": manifests.session_pod(config, launch_spec(), TOKEN),
        "state reader": manifests.reading_pod(config, execution_facts(), TOKEN, state=True, user=config.user),
        "work reader": manifests.reading_pod(config, execution_facts(), TOKEN, state=False, user=config.user),
    }


BASELINE = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETPCAP", "SETUID"}
"""Capabilities that the Pod Security level baseline allows, as far as they are used."""
CONFIGS = [read_kubernetes_config({}), read_kubernetes_config(EVERYTHING)]


@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "everything"])
def test_objects_are_valid_for_today_s_schemas(config: KubernetesConfig) -> None:
    for made in objects(config).values():
        kubernetes_validate.validate(made, "1.37", strict=True)


@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "everything"])
@pytest.mark.parametrize("kind", ["pod", "state reader", "work reader"])
def test_pod_meets_the_baseline_and_waits_for_its_node_for_ever(config: KubernetesConfig, kind: str) -> None:
    pod = objects(config)[kind]
    spec = pod["spec"]
    assert pod["metadata"]["name"] == names.pod_name(SESSION)
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (
        "Never",
        False,
        False,
    )
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert not any("hostPath" in volume for volume in spec["volumes"])
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        confined = container["securityContext"]
        assert (confined["allowPrivilegeEscalation"], confined["readOnlyRootFilesystem"]) == (False, True)
        assert confined["capabilities"]["drop"] == ["ALL"]
        assert set(confined["capabilities"].get("add", [])) <= {
            "CHOWN",
            "DAC_OVERRIDE",
            "FOWNER",
            "SETGID",
            "SETPCAP",
            "SETUID",
        }
        assert container["resources"]["limits"]["memory"]
    away = [one for one in spec["tolerations"] if one["key"].startswith("node.kubernetes.io/")]
    assert len(away) == 2
    assert not any("tolerationSeconds" in one for one in away)


def test_only_the_pod_of_agentctl_can_write_and_keeps_its_object_until_its_end_was_seen() -> None:
    made = objects(CONFIGS[0])
    assert made["pod"]["metadata"]["finalizers"] == [names.FINALIZER]
    for kind in ("state reader", "work reader"):
        mounts = made[kind]["spec"]["containers"][0]["volumeMounts"]
        assert [mount["readOnly"] for mount in mounts if mount["name"] == "work"] == [True]
        assert made[kind]["metadata"]["labels"][names.HELPER_LABEL] == EXECUTION
        assert names.EXECUTION_LABEL not in made[kind]["metadata"]["labels"]


@pytest.mark.parametrize("kind", ["pod", "state reader", "work reader"])
def test_no_node_changes_the_files_of_a_volume_for_a_pod(kind: str) -> None:
    """With fsGroup, all of them would be given to a group that may write: ssh refuses such a key."""
    spec = objects(CONFIGS[0])[kind]["spec"]
    for confined in (spec["securityContext"], *(one["securityContext"] for one in spec["containers"])):
        assert not {"fsGroup", "fsGroupChangePolicy"} & set(confined)


def test_pod_that_reads_has_a_secret_of_its_own_which_its_user_can_read() -> None:
    secrets = {}
    for kind in ("pod", "state reader", "work reader"):
        pod = objects(CONFIGS[0])[kind]
        (source,) = [one["secret"] for one in pod["spec"]["volumes"] if one["name"] == "token"]
        secrets[kind] = source["secretName"]
        assert source["secretName"] == names.secret_name(pod["metadata"]["labels"], launch_nonce(TOKEN))
        assert Pod(pod).secret == source["secretName"]
        is_root = all(one["securityContext"]["runAsUser"] == 0 for one in pod["spec"]["containers"])
        assert source["defaultMode"] == (0o400 if is_root else 0o444)
    assert secrets["pod"] != secrets["state reader"]


def test_hash_of_a_pod_follows_its_settings_and_not_its_launch() -> None:
    made = [manifests.session_pod(config, launch_spec(), TOKEN) for config in CONFIGS]
    hashes = [pod["metadata"]["annotations"][names.MADE_FROM] for pod in made]
    assert hashes == [manifests.made_from(config, launch_spec()) for config in CONFIGS]
    assert hashes[0] != hashes[1]


def test_token_is_in_the_secret_and_in_no_other_object() -> None:
    made = objects(CONFIGS[0])
    assert TOKEN not in str([made[kind] for kind in made if kind != "secret"])
    assert "token" not in [mount["name"] for mount in made["pod"]["spec"]["containers"][0]["volumeMounts"]]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([], "must be an object"),
        ({"restartPolicy": "Always"}, "cannot set restartPolicy"),
        ({"hostNetwork": True}, "cannot set hostNetwork"),
        ({"containers": []}, "cannot set containers"),
        ({"securityContext": {}}, "cannot set securityContext"),
        ({"serviceAccountName": "x"}, "cannot set serviceAccountName"),
        ({"affinity": []}, "wrong type"),
        ({"annotations": {"kandev.launch": "x"}}, "cannot be set"),
        ({"annotations": {"a": 1}}, "must be a text"),
        ({"volumes": [{"name": "work", "emptyDir": {}}]}, "name of its own"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "must be one of"),
        ({"volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "must be one of"),
        ({"volumes": [{"name": "a", "secret": {"secretName": "kandev-1"}}]}, "belongs to a session"),
        ({"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "kandev-work-1"}}]}, "belongs to a session"),
        ({"volumeMounts": [{"name": "work", "mountPath": "/x"}]}, "must name one of volumes"),
        *(
            ({"volumes": [{"name": "a", "emptyDir": {}}], "volumeMounts": [{"name": "a", **mount}]}, said)
            for mount, said in (
                ({"mountPath": "x"}, "absolute path"),
                ({"mountPath": "/x/../etc"}, "absolute path"),
                ({"mountPath": "/"}, "nothing can be mounted"),
                ({"mountPath": "/opt"}, "nothing can be mounted"),
                ({"mountPath": "//workspace"}, "nothing can be mounted"),
                ({"mountPath": "/opt/kandev/executors_app"}, "nothing can be mounted"),
                ({"mountPath": "/var/lib/agentctl/state"}, "nothing can be mounted"),
                ({"mountPath": "/x", "mountPropagation": "Bidirectional"}, "cannot be set"),
            )
        ),
        ({"hostAliases": ["x" * 40_000]}, "too large"),
    ],
    ids=as_id,
)
def test_field_that_could_loosen_a_pod_is_refused(fields: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_kubernetes_config({"pod": fields})
