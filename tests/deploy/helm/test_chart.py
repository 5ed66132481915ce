"""deploy/helm: Helm and Kubernetes' schemas of today accept it, and no Pod has more rights than it needs."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from daphne.endpoints import build_endpoint_description_strings

from executors_app import __version__
from executors_app.runtimes.kubernetes.cluster import RIGHTS
from kandev import liveness
from kandev.environment import Environment, read_environment, variable_name
from kandev.graceful_end import END_WITHIN
from sessions_app.kernel.beat_file import TOUCH_EVERY
from tests.deploy.helm.charts import (
    CHART,
    DEFAULTS,
    EVERYTHING,
    MINIMAL,
    NAMESPACE,
    SETS,
    Refused,
    Rendered,
    render,
    with_value,
)
from tests.services import ROOT

CLUSTER = "1.37"
"""Version of Kubernetes whose schemas are asked; the chart says which is the oldest."""
OF_OTHERS = {"ServiceMonitor"}
"""Kinds of the Prometheus operator, whose schemas are not Kubernetes' own."""
PROCESSES = {"web", "supervisor", "worker"}
SECRETS = "/run/kandev/"

every_set = pytest.mark.parametrize("values", SETS.values(), ids=SETS)


def names(one: dict[str, Any]) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def environment(spec: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a Pod's only container; each is set once."""
    (container,) = spec["containers"]
    found = {one["name"]: one.get("value", "10.0.0.7") for one in container["env"]}
    assert len(found) == len(container["env"])
    return {name: value.replace("$(POD_IP)", found.get("POD_IP", "")) for name, value in found.items()}


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def labels_of(rendered: Rendered, component: str) -> dict[str, str]:
    """Return the labels of the Pods of a component."""
    for one in rendered.objects():
        template = one.get("spec", {}).get("template", {})
        labels: dict[str, str] = template.get("metadata", {}).get("labels", {})
        if labels.get("app.kubernetes.io/component") == component:
            return labels
    raise AssertionError(component)


@every_set
def test_helm_and_todays_schemas_accept_every_object(values: dict[str, Any]) -> None:
    rendered = render(values)
    assert set(rendered.findings) <= {"icon is recommended"}
    seen = [names(one) for one in rendered.objects()]
    assert len(seen) == len(set(seen))
    for one in rendered.objects():
        if one["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(one, CLUSTER, strict=True)
    assert "{{" not in json.dumps(rendered.objects())


def test_chart_has_the_version_of_the_release() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == about["version"] == __version__


def test_optional_parts_are_left_out_until_they_are_wanted() -> None:
    always = {"Deployment", "Service", "ServiceAccount"}
    assert render(MINIMAL).kinds() == always
    more = {"Job", "PersistentVolumeClaim", "Role", "RoleBinding", "Namespace", "NetworkPolicy"}
    assert render(SETS["defaults"]).kinds() == always | more
    wanted = {"Ingress", "PodDisruptionBudget", "ServiceMonitor", "ClusterRole", "ClusterRoleBinding"}
    assert render(EVERYTHING).kinds() == always | more | wanted


class TestRights:
    @every_set
    def test_containers_run_as_their_own_user_without_privileges(self, values: dict[str, Any]) -> None:
        found = dict(render(values).pods())
        assert found.keys() >= PROCESSES
        for component, spec in found.items():
            (container,) = spec["containers"]
            assert "initContainers" not in spec and "hostNetwork" not in spec and "hostPID" not in spec, component
            assert spec["securityContext"]["runAsUser"] == 10001
            assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["runAsNonRoot"]
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["memory"]
            assert not any("hostPath" in volume for volume in spec["volumes"])

    @every_set
    def test_data_directory_belongs_to_the_process_alone(self, values: dict[str, Any]) -> None:
        """A volume belongs to root and has the group of the Pod; the directory in it is made by the process."""
        for _, spec in render(values).pods():
            (container,) = spec["containers"]
            mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            assert environment(spec)["KANDEV_DATA_DIR"].startswith(f"{mounts['data']}/")
            assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"] == 10001
            assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"

    @every_set
    def test_secrets_are_only_named(self, values: dict[str, Any]) -> None:
        rendered = render(values)
        secret = {variable_name(entry) for entry in fields(Environment) if entry.metadata["secret"]}
        assert not rendered.kinds() & {"Secret", "ConfigMap"}
        for _, spec in rendered.pods():
            found = environment(spec)
            assert not secret & found.keys()
            (projected,) = (one["projected"] for one in spec["volumes"] if one["name"] == "secrets")
            paths = {item["path"] for source in projected["sources"] for item in source["secret"]["items"]}
            assert {f"{SECRETS}{path}" for path in paths} == {v for n, v in found.items() if n.endswith("_FILE")}
            assert {n.removesuffix("_FILE") for n in found if n.endswith("_FILE")} <= secret
            assert projected["defaultMode"] == 0o440

    def test_only_processes_that_reach_sessions_have_a_token_of_the_cluster(self) -> None:
        tokens = {component: spec["automountServiceAccountToken"] for component, spec in render(EVERYTHING).pods()}
        assert tokens == {**dict.fromkeys(PROCESSES | {"recover-sessions"}, True), "migrate": False}
        assert not any(spec["automountServiceAccountToken"] for _, spec in render(MINIMAL).pods())

    def test_rights_are_limited_to_the_namespace_of_the_sessions(self) -> None:
        rendered = render(SETS["defaults"])
        assert not rendered.kinds() & {"ClusterRole", "ClusterRoleBinding"}
        role, binding = rendered.named("Role", "kandev"), rendered.named("RoleBinding", "kandev")
        assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "kandev-sessions"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "kandev", "namespace": NAMESPACE}]
        allowed = {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
        assert allowed == set(RIGHTS), "what the runtime asks for, and can be asked for here"

    def test_nodes_are_the_only_thing_that_may_be_read_in_the_whole_cluster(self) -> None:
        role = render(EVERYTHING).named("ClusterRole", "agents-kandev-system-nodes")
        assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]

    def test_sessions_are_never_in_the_namespace_of_the_release(self) -> None:
        with pytest.raises(Refused, match="reads Secrets there"):
            render(SETS["defaults"], namespace="kandev-sessions")


class TestNetwork:
    def test_sessions_accept_agentctl_from_the_control_plane_alone(self) -> None:
        rendered = render(SETS["defaults"])
        policy = rendered.named("NetworkPolicy", "kandev-sessions")
        assert policy["metadata"]["namespace"] == "kandev-sessions"
        assert policy["spec"]["podSelector"] == {} and policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        (rule,) = policy["spec"]["ingress"]
        assert rule["ports"] == [{"protocol": "TCP", "port": 8700}]
        (caller,) = rule["from"]
        assert caller["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
        assert all(selects(caller["podSelector"]["matchLabels"], labels_of(rendered, one)) for one in PROCESSES)

    def test_sessions_call_names_and_public_addresses_alone(self) -> None:
        dns, addresses = render(SETS["defaults"]).named("NetworkPolicy", "kandev-sessions")["spec"]["egress"]
        assert {port["port"] for port in dns["ports"]} == {53}
        (version4, version6) = (one["ipBlock"] for one in addresses["to"])
        assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(version4["except"])
        assert {"fc00::/7", "fe80::/10"} <= set(version6["except"])

    def test_further_addresses_are_added_to_those_of_sessions(self) -> None:
        egress = render(EVERYTHING).named("NetworkPolicy", "agents-sessions")["spec"]["egress"]
        assert egress[-1]["to"] == [{"ipBlock": {"cidr": "10.1.2.3/32"}}]

    def test_web_accepts_others_than_sessions_and_the_rest_nobody(self) -> None:
        rendered = render(SETS["defaults"])
        rest, web = rendered.named("NetworkPolicy", "kandev"), rendered.named("NetworkPolicy", "kandev-web")
        assert rest["spec"]["policyTypes"] == ["Ingress"] and "ingress" not in rest["spec"]
        for component in (*PROCESSES, "migrate", "recover-sessions"):
            assert selects(rest["spec"]["podSelector"]["matchLabels"], labels_of(rendered, component))
            is_web = selects(web["spec"]["podSelector"]["matchLabels"], labels_of(rendered, component))
            assert is_web == (component == "web")
        ((caller,),) = (rule["from"] for rule in web["spec"]["ingress"])
        (condition,) = caller["namespaceSelector"]["matchExpressions"]
        assert (condition["operator"], condition["values"]) == ("NotIn", ["kandev-sessions"])

    def test_service_budget_and_monitor_select_web_alone(self) -> None:
        rendered = render(EVERYTHING)
        service = rendered.named("Service", "agents-web")
        budget = rendered.named("PodDisruptionBudget", "agents-web")
        for selector in (service["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]):
            assert [one for one in PROCESSES if selects(selector, labels_of(rendered, one))] == ["web"]
        monitor = rendered.named("ServiceMonitor", "agents")
        assert selects(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["authorization"]["credentials"] == {"name": "kandev-metrics", "key": "token"}
        (port,) = service["spec"]["ports"]
        assert endpoint["port"] == port["name"]


class TestProcesses:
    @every_set
    def test_settings_are_valid(self, values: dict[str, Any]) -> None:
        for _, spec in render(values).pods():
            found = {n: v for n, v in environment(spec).items() if n.startswith("KANDEV_") and not n.endswith("_FILE")}
            read = read_environment(found)
            assert read.allowed_hosts[0] == "kandev.example"
            assert read.trusted_origins == ("https://kandev.example",)

    def test_processes_of_a_release_are_one_host(self) -> None:
        assert {environment(spec)["KANDEV_HOST_NAME"] for _, spec in render(SETS["defaults"]).pods()} == {"kandev"}
        assert {environment(spec)["KANDEV_HOST_NAME"] for _, spec in render(EVERYTHING).pods()} == {"cluster"}

    def test_prometheus_may_call_pods_by_their_addresses(self) -> None:
        assert environment(dict(render(EVERYTHING).pods())["web"])["KANDEV_ALLOWED_HOSTS"] == "kandev.example,10.0.0.7"

    def test_new_web_process_gets_requests_once_it_sees_the_whole_deployment(self) -> None:
        """Later, one that answers keeps them: without a database or a supervisor, pages say what is wrong."""
        (web,) = dict(render(SETS["defaults"]).pods())["web"]["containers"]
        probes = {kind: web[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
        assert {kind: probe["path"] for kind, probe in probes.items()} == {
            "startup": "/healthz",
            "readiness": "/readyz?once",
            "liveness": "/healthz",
        }
        for probe in probes.values():
            assert probe["httpHeaders"] == [{"name": "Host", "value": "kandev.example"}]

    @every_set
    def test_process_is_never_restarted_for_what_others_lack(self, values: dict[str, Any]) -> None:
        """Probes that restart ask for the process alone: in an outage of the database, restarts would never end."""
        for component in PROCESSES:
            (container,) = dict(render(values).pods())[component]["containers"]
            restarting = [container[kind] for kind in ("startupProbe", "livenessProbe") if kind in container]
            asked = {probe["httpGet"]["path"] for probe in restarting if "httpGet" in probe}
            assert asked <= {"/healthz"} and restarting

    @pytest.mark.parametrize("component", ["supervisor", "worker"])
    def test_process_without_a_port_is_judged_by_the_file_that_it_touches(self, component: str) -> None:
        spec = dict(render(SETS["defaults"]).pods())[component]
        (container,) = spec["containers"]
        probe = container["livenessProbe"]
        *command, path, limit = probe["exec"]["command"]
        assert command == ["python3", "-P"] and (ROOT / Path(path).relative_to("/opt/kandev")).is_file()
        assert "WORKDIR /opt/kandev\n" in (CHART.parent / "Dockerfile").read_text()
        file = Path(environment(spec)["KANDEV_BEAT_PATH"])
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        (volume,) = (one for one in spec["volumes"] if one["name"] == mounts[str(file.parent)])
        assert volume["emptyDir"]["medium"] == "Memory"
        assert container["readinessProbe"]["exec"]["command"] == ["sh", "-c", f"test -e {file}"]
        assert float(limit) == liveness.LIMIT > 4 * TOUCH_EVERY
        assert probe["timeoutSeconds"] > liveness.ANSWERS_WITHIN
        # After an outage, a process notices within this time that it is over.
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) >= 60
        assert container["args"][-1] == "--wait-for-database"

    @every_set
    def test_web_process_has_time_to_answer_what_it_has_begun(self, values: dict[str, Any]) -> None:
        spec = dict(render(values).pods())["web"]
        (command,) = (one["lifecycle"]["preStop"]["exec"]["command"] for one in spec["containers"])
        assert spec["terminationGracePeriodSeconds"] >= int(command[1]) + END_WITHIN + 5

    @every_set
    def test_new_processes_begin_before_old_ones_end(self, values: dict[str, Any]) -> None:
        for one in render(values).objects():
            if one["kind"] == "Deployment":
                assert one["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}

    def test_pods_stay_together_where_the_disk_belongs_to_one_node(self) -> None:
        rendered = render(SETS["defaults"])
        for component in (*PROCESSES, "recover-sessions"):
            (term,) = dict(rendered.pods())[component]["affinity"]["podAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
            assert selects(term["labelSelector"]["matchLabels"], labels_of(rendered, "web"))
            (condition,) = term["labelSelector"]["matchExpressions"]
            assert set(condition["values"]) == PROCESSES
        assert "PodDisruptionBudget" not in rendered.kinds(), "it would stop a drain for ever"

    def test_pods_are_spread_where_all_nodes_have_the_files(self) -> None:
        for component, spec in render(EVERYTHING).pods():
            assert "affinity" not in spec
            assert ("topologySpreadConstraints" in spec) == (component == "web")

    def test_what_only_the_cluster_has_outlives_the_release(self) -> None:
        rendered = render(SETS["defaults"])
        for kind, name in (("PersistentVolumeClaim", "kandev-data"), ("Namespace", "kandev-sessions")):
            assert rendered.named(kind, name)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


class TestUpgrades:
    @pytest.mark.parametrize("name", ["kandev-migrate", "kandev-recover-sessions"])
    def test_failed_step_is_kept_for_its_log_until_it_is_tried_again(self, name: str) -> None:
        policy = render(SETS["defaults"]).named("Job", name)["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"

    def test_database_is_migrated_before_new_code_runs(self) -> None:
        job = render(SETS["defaults"]).named("Job", "kandev-migrate")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        spec = job["spec"]["template"]["spec"]
        assert spec["containers"][0]["args"] == ["python3", "manage.py", "migrate", "--verbosity", "0"]
        assert {"name": "data", "emptyDir": {}} in spec["volumes"], "the claim does not exist yet"
        assert "serviceAccountName" not in spec, "nor does the account"

    def test_sessions_are_looked_at_after_an_upgrade_as_in_roll_out(self) -> None:
        job = render(SETS["defaults"]).named("Job", "kandev-recover-sessions")
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-upgrade"
        assert job["spec"]["backoffLimit"] == 0
        assert job["spec"]["activeDeadlineSeconds"] > 90, "and it does not run for ever"
        (container,) = job["spec"]["template"]["spec"]["containers"]
        *command, begun = container["args"]
        assert command == [*["python3", "manage.py", "recover_sessions", "--wait", "90", "--strict", "--since"]]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", begun)
        roll_out = (CHART.parent / "roll-out").read_text()
        assert 'recover_sessions --wait "$patience" --strict --since "$begun"' in roll_out


class TestValues:
    @pytest.mark.parametrize(
        ("path", "value", "words"),
        [
            ("image.repository", "", "image.repository"),
            ("image.repository", "registry.example/kandev:1.0", "repository"),
            ("sessions.image", "", "Set sessions.image to the image that deploy/Dockerfile.agentctl builds"),
            ("sessions.networkPolicy.allowed", [{"cidr": "example.com"}], "cidr"),
            ("site.trustedProxies", ["ingress-nginx"], "trustedProxies"),
            ("site.host", "", "site.host"),
            ("site.host", "https://kandev.example", "host"),
            ("ingress.enabled", True, "site.trustedProxies"),
            ("serviceMonitor.enabled", True, "secrets.metricsToken.name"),
            ("secrets.databaseUrl", "postgres://kandev:secret@db/kandev", "databaseUrl"),
            ("secrets.databaseUrl.value", "postgres://kandev:secret@db/kandev", "value"),
            ("settings.KANDEV_SECRET_KEY", "secret", "KANDEV_SECRET_KEY"),
            ("settings.KANDEV_HOST_NAME", "other", "KANDEV_HOST_NAME"),
            ("settings.KANDEV_IDLE_SLEEP", 600, "KANDEV_IDLE_SLEEP"),
            ("settings.KANDEV_IDLE_SLEEPS", "600", "KANDEV_IDLE_SLEEPS"),
            ("settings.KANDEV_BEAT_PATH", "/tmp/beat", "KANDEV_BEAT_PATH"),
            ("secrets.more.KANDEV_LEASE_TTL", {"name": "kandev", "key": "x"}, "KANDEV_LEASE_TTL"),
            ("data.accessMode", "ReadOnlyMany", "accessMode"),
            ("web.resources.limits.memory", None, "memory"),
            ("web.replica", 2, "replica"),
        ],
    )
    def test_wrong_value_is_refused_and_named(self, path: str, value: Any, words: str) -> None:
        with pytest.raises(Refused, match=re.escape(words)):
            render(with_value(path, value))

    def test_every_other_setting_is_accepted_and_no_secret_one_as_a_plain_value(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
        accepted = set(schema["settings"]["propertyNames"]["enum"])
        accepted_secrets = set(schema["secrets"]["properties"]["more"]["propertyNames"]["enum"])
        plain = {variable_name(entry) for entry in fields(Environment) if not entry.metadata["secret"]}
        secret = {variable_name(entry) for entry in fields(Environment) if entry.metadata["secret"]}
        pods = dict(render(EVERYTHING).pods())
        given = set().union(*(environment(pods[one]).keys() for one in PROCESSES)) - EVERYTHING["settings"].keys()
        of_tests = {"KANDEV_CRASH_AT", "KANDEV_CRASH_DIR"}
        assert accepted == plain - given - of_tests | {"KANDEV_LOG_FORMAT"}
        assert accepted_secrets == secret - {"KANDEV_METRICS_TOKEN"} - {
            name.removesuffix("_FILE") for name in given
        } | {"KANDEV_SECRET_KEY_FALLBACKS"}

    def test_monitor_is_refused_where_nothing_knows_monitors(self) -> None:
        assert "ServiceMonitor" in render(EVERYTHING).kinds()
        with pytest.raises(Refused, match="install the Prometheus operator, or set serviceMonitor"):
            render(EVERYTHING, has_monitors=False)
        assert "ServiceMonitor" not in render(DEFAULTS, has_monitors=False).kinds()

    def test_site_without_https_has_an_ingress_without_tls(self) -> None:
        values = {**EVERYTHING, "site": {**EVERYTHING["site"], "origin": "http://kandev.example"}}
        assert "tls" not in render(values).named("Ingress", "agents")["spec"]
        assert render(EVERYTHING).named("Ingress", "agents")["spec"]["tls"][0]["hosts"] == ["kandev.example"]

    def test_every_value_is_in_the_schema_and_explained(self) -> None:
        text = (CHART / "values.yaml").read_text()
        schema = json.loads((CHART / "values.schema.json").read_text())
        assert yaml.safe_load(text).keys() == schema["properties"].keys() - {"global"}

    def test_next_step_is_said_after_the_installation(self) -> None:
        notes = render(SETS["defaults"]).manifests["kandev/templates/NOTES.txt"]
        for words in ("createsuperuser", "Open https://kandev.example", '{"namespace": "kandev-sessions"}'):
            assert words in notes


class TestAddresses:
    @every_set
    def test_web_pods_listen_on_addresses_of_both_kinds(self, values: dict[str, Any]) -> None:
        rendered = render(values)
        (spec,) = [spec for component, spec in rendered.pods() if component == "web"]
        (container,) = spec["containers"]
        assert _endpoint(container["args"]) == r"tcp:port=8000:interface=\:\:"
        (service,) = [one for one in rendered.objects() if one["kind"] == "Service" and names(one).endswith("-web")]
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"

    def test_web_pods_do_otherwise_what_the_image_does(self) -> None:
        dockerfile = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", "")
        command = json.loads(dockerfile.rpartition("CMD ")[2])
        everywhere = command[command.index("-b") + 1]
        for listen in ("::", everywhere):
            (spec,) = [spec for name, spec in render(with_value("web.listen", listen)).pods() if name == "web"]
            (container,) = spec["containers"]
            assert [listen if part == everywhere else part for part in command] == container["args"]

    def test_prometheus_may_call_a_pod_by_its_address_of_version_6(self) -> None:
        found = read_environment({"KANDEV_ALLOWED_HOSTS": "kandev.example,fd00::7,10.0.0.7,[fd00::8]"})
        assert found.allowed_hosts == ("kandev.example", "[fd00::7]", "10.0.0.7", "[fd00::8]")


def _endpoint(command: list[str]) -> str:
    """Return where daphne listens."""
    given = dict(pairwise(command))
    (found,) = build_endpoint_description_strings(host=given["-b"], port=int(given["-p"]))
    return str(found)
