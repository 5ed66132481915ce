"""The forms of the settings of executors: one for each runtime, with a field for each of its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django import forms

from executors_app.form_fields import PairsField
from executors_app.models import Executor
from executors_app.orm import JSONFormField
from executors_app.wire.executions import LOCAL
from sessions_app.models import Host
from sessions_app.placement.services.executor_hosts import depends_on_host, hosts_to_choose

TEXT_LIMIT: Final = 2000
PAIRS_LIMIT: Final = 20_000
_MAX_AGENTS: Final = 10_000
_OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a runtime, as ``Executor.config`` has it under its ``name``."""

    name: str
    label: str
    help: str
    kind: str = "text"
    """``text``, ``whole``, ``number``, ``pairs``, ``choice`` or ``object`` (JSON)."""
    required: bool = False
    choices: Sequence[str] = ()
    """Of a ``choice``: its values, beside the empty one."""
    default: str = ""
    """Of a ``choice``: what its empty value is called."""


_IMAGE: Final = Setting("image", "Image", "Empty: the image of this installation (KANDEV_AGENTCTL_IMAGE).")
_LIMITS: Final = (
    Setting("memory_mb", "Memory in MiB", "For an agent and everything that it starts. Empty: 4096.", "whole"),
    Setting("pids", "Processes", "How many processes and threads it may have. Empty: 1024.", "whole"),
    Setting("cpus", "Processor cores", "Empty or 0: all.", "number"),
    Setting(
        "subnets",
        "Network for containers",
        "A private IPv4 network such as 10.213.0.0/16, from which each container gets one of its own. Empty: the "
        "engine’s, which is enough for about thirty sessions.",
    ),
)
SETTINGS: Final[Mapping[str, Sequence[Setting]]] = {
    LOCAL: (),
    "local_docker": (_IMAGE, *_LIMITS),
    "remote_docker": (
        Setting(
            "docker_host",
            "Address of the engine",
            "tcp://HOST:PORT with TLS, or ssh://USER@HOST.",
            required=True,
        ),
        Setting("tls_ca", "CA certificate", "For tcp://: path of a file on this machine."),
        Setting("tls_cert", "Certificate of Kandev", "For tcp://: path of a file on this machine."),
        Setting("tls_key", "Key of that certificate", "For tcp://: path of a file that only Kandev’s user can read."),
        Setting("ssh_key", "SSH key", "For ssh://: path of a file on this machine. Empty: ssh’s own."),
        Setting("ssh_known_hosts", "Known hosts", "For ssh://: path of a file on this machine. Empty: ssh’s own."),
        Setting("publish", "Address for ports", "Address of that machine that Kandev can reach.", required=True),
        Setting("host", "Address as seen from here", "Empty: the address for ports."),
        Setting("user", "User of agents", "UID:GID, not root. Empty: 1000:1000."),
        _IMAGE,
        *_LIMITS,
    ),
    "remote": (
        Setting("url", "Address", "Of the daemon there, such as https://build1.example:8443.", required=True),
        Setting(
            "token_file", "Token file", "Name of a file in hosts/ of Kandev’s data directory, mode 0600.", required=True
        ),
        Setting(
            "fingerprint",
            "Fingerprint",
            "SHA-256 of the only certificate to trust. Empty: those that this machine trusts.",
        ),
        Setting(
            "repositories",
            "Repositories there",
            "One per line: the path here = its path or address there. Others have the same path there.",
            "pairs",
        ),
    ),
    "kubernetes": (
        Setting(
            "kubeconfig",
            "Kubeconfig",
            "Path of a file on this machine that only Kandev’s user can read. Empty: the cluster that Kandev runs in.",
        ),
        Setting("context", "Context", "Of the kubeconfig. Empty: its current one."),
        Setting(
            "namespace", "Namespace", "Of its own, because Kandev can list the Secrets in it. Empty: kandev-sessions."
        ),
        Setting(
            "image", "Image", "As the nodes pull it. Empty: the image of this installation (KANDEV_AGENTCTL_IMAGE)."
        ),
        Setting(
            "image_pull_policy",
            "When to pull",
            "Whether a node that has the image looks for a newer one.",
            "choice",
            choices=("Always", "IfNotPresent", "Never"),
            default="As the cluster decides",
        ),
        Setting("pull_secrets", "Pull secrets", "Names of Secrets for the image’s registry, separated by commas."),
        Setting(
            "memory_mb",
            "Memory in MiB",
            "Reserved for an agent and everything that it starts, and its limit. Empty: 4096.",
            "whole",
        ),
        Setting("cpu_request", "Cores reserved", "Empty: 0.25.", "number"),
        Setting("cpus", "Cores at most", "Empty or 0: all of the node.", "number"),
        Setting("storage_gb", "Volume in GiB", "Of each session; it outlives its Pods. Empty: 10.", "whole"),
        Setting("storage_class", "Storage class", "Empty: the cluster’s default."),
        Setting(
            "access_mode",
            "Access mode",
            "Choose ReadWriteOncePod where the storage has it: no second Pod can then use a volume.",
            "choice",
            choices=("ReadWriteOncePod", "ReadWriteMany"),
            default="ReadWriteOnce",
        ),
        Setting(
            "service_account", "Service account", "Empty: the namespace’s default. Its token never reaches agents."
        ),
        Setting("node_selector", "Nodes", "Labels that a node must have, one per line: label = value.", "pairs"),
        Setting("user", "User of agents", "UID:GID, not root. Empty: 1000:1000."),
        Setting(
            "pod",
            "Further fields of Pods",
            'A JSON object, such as {"priorityClassName": "low"}. It cannot change '
            "names, users, rights or volumes of sessions.",
            "object",
        ),
    ),
    "sprites": (Setting("python", "Python", "Path of a Python in the sprite. Empty: one is prepared."),),
}
"""The settings of each runtime. Those of another one, which was added, are entered as JSON."""

RUNTIME_HELP: Final[Mapping[str, str]] = {
    LOCAL: "No setup. Agents run as Kandev’s user and can read what it can read: for agents that you trust.",
    "local_docker": "Each session has a container of its own, without access to this machine. Needs Docker and an "
    "image (make image).",
    "remote": "Agents run as a user of another machine, where you start agentctl host. For agents that you trust.",
    "kubernetes": "Each session has a Pod and a volume in a cluster. Needs a namespace, a Role and an image that the "
    "nodes can pull.",
    "remote_docker": "Each session has a container on a Docker engine elsewhere, over TLS or ssh.",
    "sprites": "Each session has a small machine at Fly.io that sleeps when it is idle. Needs KANDEV_SPRITES_TOKEN.",
}


class ObjectField(JSONFormField):
    """A JSON object in a text area, which is empty as long as there is none."""

    def prepare_value(self, value: Any) -> Any:
        """Return the text to show."""
        if value is None:
            return ""
        return super().prepare_value(value)


class ExecutorForm(forms.Form):
    """Name and limit of an executor, and the settings of its runtime as fields ``config-…``."""

    name = forms.CharField(max_length=200, help_text="As people see it when they start a session.")
    max_live = forms.IntegerField(
        label="Agents at once",
        required=False,
        min_value=0,
        max_value=_MAX_AGENTS,
        help_text="Empty: on this machine as many as its memory allows, elsewhere no limit. 0: none.",
    )

    pool = forms.CharField(
        max_length=100,
        required=False,
        help_text="Executors with the same pool share its sessions: unless you choose one of them, a session starts "
        "on the one that fits best, or waits for a place. Empty: none.",
    )
    labels = forms.CharField(
        max_length=500,
        required=False,
        help_text="What it offers to sessions of its pool, such as gpu, large. A repository can require labels.",
    )
    host = forms.ModelChoiceField(
        queryset=Host.objects.none(),
        label="Host",
        required=False,
        empty_label="Any host that has the repository",
        help_text="Only a supervisor of this host starts sessions here. Sessions that exist stay where they are.",
    )

    def __init__(self, runtime: str, *args: Any, executor: Executor | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.runtime = runtime
        hosts = hosts_to_choose(executor) if depends_on_host(runtime) else Host.objects.none()
        if hosts.exists():
            self.fields["host"].queryset = hosts  # type: ignore[attr-defined]
        else:
            del self.fields["host"]
        self._settings = SETTINGS.get(runtime)
        for setting in self._settings or ():
            self.fields[f"config-{setting.name}"] = setting_field(setting)
        if self._settings is None:
            self.fields[_OTHER] = ObjectField(
                required=False, label="Settings", help_text="A JSON object.", widget=forms.Textarea(attrs={"rows": 4})
            )

    @staticmethod
    def initial_of(executor: Executor) -> dict[str, Any]:
        """Return what the form shows of an executor."""
        values: dict[str, Any] = {
            "name": executor.name,
            "max_live": executor.max_live,
            "host": executor.host_id,
            "pool": executor.pool,
            "labels": executor.labels,
            _OTHER: executor.config,
        }
        for setting in SETTINGS.get(executor.runtime, ()):
            values[f"config-{setting.name}"] = executor.config.get(setting.name)
        return values

    def clean_other(self) -> dict[str, Any]:
        """Return the settings of a runtime that has no fields here."""
        config = self.cleaned_data[_OTHER]
        if config is None:
            return {}
        if not isinstance(config, dict) or len(json.dumps(config)) > PAIRS_LIMIT:
            raise forms.ValidationError("Expected a JSON object.")
        return config

    def values(self, kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the values of a valid form as the model has them; ``kept`` has settings without a field."""
        data = self.cleaned_data
        config = dict(data.get(_OTHER) or {})
        if self._settings is not None:
            named = {setting.name for setting in self._settings}
            config = {name: value for name, value in (kept or {}).items() if name not in named}
            given = {setting.name: data[f"config-{setting.name}"] for setting in self._settings}
            config |= {name: value for name, value in given.items() if value not in (None, "", {})}
        values = {name: data[name] for name in ("name", "max_live", "pool", "labels")} | {"config": config}
        if "host" in data:
            values["host_id"] = data["host"] and data["host"].pk
        return values

    def field_of(self, name: str) -> str | None:
        """Return the field that shows an error of a value of the model; None: the whole form."""
        return name if name in self.fields else None


def setting_field(setting: Setting) -> forms.Field:
    """Return the form field of a setting."""
    options: dict[str, Any] = {"label": setting.label, "help_text": setting.help, "required": setting.required}
    if setting.kind == "whole":
        return forms.IntegerField(min_value=0, max_value=2**31 - 1, **options)
    if setting.kind == "number":
        return forms.FloatField(min_value=0, max_value=2**31 - 1, **options)
    if setting.kind == "pairs":
        return PairsField(max_length=PAIRS_LIMIT, widget=forms.Textarea(attrs={"rows": 3}), **options)
    if setting.kind == "choice":
        return forms.ChoiceField(choices=[("", setting.default), *((one, one) for one in setting.choices)], **options)
    if setting.kind == "object":
        return ObjectField(widget=forms.Textarea(attrs={"rows": 3}), **options)
    return forms.CharField(max_length=TEXT_LIMIT, **options)
