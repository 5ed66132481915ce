"""Models: agent profiles (who runs), executors (where), and executions (what runs there now)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q

from executors_app import plugins
from executors_app.encryption import EncryptedJSONField, EncryptedTextField, SecretUnreadable
from executors_app.mcp_servers import check_secret_hosts
from executors_app.orm import ListField, ObjectField
from executors_app.wire.executions import LOCAL, ExecutionFacts, ExecutorStatus

ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_PATTERNS: Final = 20
PATTERN_LIMIT: Final = 200
"""Maximum characters of one pattern."""

_SECRET_FIELDS: Final = ("env", "mcp_servers")
PROFILE_SECRETS: Final = (*_SECRET_FIELDS, "former_secrets")
"""Fields of a profile that are encrypted; lists are read without them."""
MAX_FORMER_SECRETS: Final = 100


SNAPSHOT_DUE: Final = ~Q(snapshot_announced=F("snapshot_arrived"))
"""Rows whose newest snapshot has not arrived in the archive; also the condition of an index."""


def check_env(env: Any) -> None:
    """Raise ValidationError for an invalid environment: names must be valid in a shell."""
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise ValidationError("Expected an object with string values.")
    if bad := [name for name in env if not ENV_NAME.fullmatch(name)]:
        raise ValidationError(f"Not a valid variable name: {', '.join(map(repr, bad))}.")


def check_patterns(patterns: Any) -> None:
    """Raise ValidationError for anything but a short list of regular expressions."""
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise ValidationError("Expected a list of regular expressions, none of them empty.")
    if len(patterns) > MAX_PATTERNS or any(len(pattern) > PATTERN_LIMIT for pattern in patterns):
        raise ValidationError(f"Expected at most {MAX_PATTERNS} patterns of at most {PATTERN_LIMIT} characters each.")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValidationError(f"{pattern!r} is not a regular expression: {error}.") from error


class AgentProfile(models.Model):
    """How a team runs an agent; a profile without a team is shared by all."""

    class PermissionMode(models.TextChoices):
        """What happens when the agent asks for permission."""

        ASK = "ask", "Ask"
        AUTO_APPROVE = "auto_approve", "Approve automatically"

    class BackgroundPolicy(models.TextChoices):
        """What happens to processes that the agent has left running when its session would sleep."""

        KEEP = "keep", "Keep the session awake"
        END = "end", "End them and let the session sleep"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200)
    team = models.ForeignKey(
        "auth.Group", null=True, blank=True, on_delete=models.CASCADE, related_name="agent_profiles"
    )
    agent_type = models.CharField(max_length=64)
    command = ListField(default=list, blank=True)
    """argv as a list of strings; empty: the agent type's command."""
    args = ListField(default=list, blank=True)
    """Appended to the command."""
    env = EncryptedJSONField(default=dict, blank=True)
    model = models.CharField(max_length=200, blank=True)
    mode = models.CharField(max_length=200, blank=True)
    """Id or name of one of the agent's own modes, for example ``plan``; set at every start."""
    additional_directories = ListField(default=list, blank=True)
    """Absolute paths on the agent's machine that it may use in addition to its workspace."""
    mcp_servers = EncryptedJSONField(default=list, blank=True)
    former_secrets = EncryptedJSONField(default=list, blank=True, db_default="", editable=False)
    """Values that ``env`` and ``mcp_servers`` had before, as ``{name, value}``, newest first: texts still have them."""
    secret_hosts = ObjectField(default=dict, blank=True)
    """By variable of ``env``: the hosts whose servers, in lists of teams and repositories, may be given its value."""
    gone_patterns = ListField(default=list, blank=True)
    """Regular expressions for errors that mean the conversation is gone, in addition to the type's."""
    permission_mode = models.CharField(max_length=16, choices=PermissionMode.choices, default=PermissionMode.ASK)
    supports_session_resume = models.BooleanField(null=True, blank=True, default=None)
    """None: as the agent type declares."""
    history_context_injection = models.BooleanField(null=True, blank=True, default=None)
    """None: as the agent type declares."""
    memory_check = models.BooleanField(default=False)
    """Whether to spend one small turn after an unproven start: the agent is asked to quote its last request."""
    background_policy = models.CharField(
        "processes left running", max_length=4, choices=BackgroundPolicy.choices, blank=True, default="", db_default=""
    )
    """What sessions without a policy of their own do with them; empty: ``KANDEV_BACKGROUND_PROCESSES``."""
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Since when no new session may use it; its sessions go on. None: it is enabled."""
    disabled_by = models.CharField(max_length=150, blank=True, default="", db_default="", editable=False)
    """The name of the user who disabled it; empty: it is enabled, or was disabled before this was recorded."""
    disabled_by_staff = models.BooleanField(default=False, db_default=False, editable=False)
    """Whether that user was staff: then only staff can enable it."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "agent_profiles"
        ordering = ("name", "id")

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, update_fields: Iterable[str] | None = None, **options: Any) -> None:
        """Save the row, and remember the secrets that are replaced."""
        fields = None if update_fields is None else set(update_fields)
        may_replace = fields is None or not fields.isdisjoint(_SECRET_FIELDS)
        if may_replace and not self._state.adding and self._remember_replaced_secrets() and fields is not None:
            fields.add("former_secrets")
        super().save(*args, update_fields=fields, **options)

    def _remember_replaced_secrets(self) -> bool:
        """Add the stored values that the row no longer has to ``former_secrets``; return whether there are any."""
        stored = AgentProfile.objects.filter(pk=self.pk).only(*PROFILE_SECRETS).first()
        if stored is None:
            return False
        try:
            kept = named_values(self)
            replaced = [pair for pair in named_values(stored) if pair not in kept]
            earlier = [pair for pair in stored.former_secrets if pair not in replaced]
        except SecretUnreadable:
            return False
        if replaced:
            self.former_secrets = [*replaced, *earlier][:MAX_FORMER_SECRETS]
        return bool(replaced)

    def argv(self, runtime: str = LOCAL) -> list[str]:
        """Return the agent's command line: the profile's command or the type's, then the profile's arguments.

        ``runtime`` is the executor's: on other machines the built-in agent has another command.
        """
        return [*(self.command or plugins.agent_type(self.agent_type).argv_on(runtime)), *self.args]

    def clean(self) -> None:
        """Raise ValidationError for unknown agent types, arguments that are not strings, and relative directories."""
        try:
            plugins.agent_type(self.agent_type)
        except plugins.UnknownPlugin as error:
            raise ValidationError({"agent_type": error.message}) from error
        for name in ("command", "args", "additional_directories"):
            value = getattr(self, name)
            if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
                raise ValidationError({name: "Expected a list of strings."})
        try:
            check_secret_hosts(self.secret_hosts)
        except ValidationError as error:
            raise ValidationError({"secret_hosts": error.messages}) from error
        try:
            check_patterns(self.gone_patterns)
        except ValidationError as error:
            raise ValidationError({"gone_patterns": error.messages}) from error
        if not all(PurePosixPath(path).is_absolute() and "\0" not in path for path in self.additional_directories):
            raise ValidationError({"additional_directories": "Expected absolute paths."})


def named_values(profile: AgentProfile) -> list[dict[str, str]]:
    """Return what may be secret in a profile, as ``{name, value}``. Raises SecretUnreadable."""
    parts = [profile.env, *(server.get(part) for server in profile.mcp_servers for part in ("env", "headers"))]
    pairs: list[tuple[Any, Any]] = []
    for part in parts:
        if isinstance(part, dict):
            pairs += part.items()
        elif isinstance(part, list):
            pairs += ((each.get("name"), each.get("value")) for each in part if isinstance(each, dict))
    return [{"name": str(name), "value": value} for name, value in pairs if isinstance(value, str) and value]


_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,62}")
MAX_LABELS: Final = 20


def split_labels(text: str) -> frozenset[str]:
    """Return the names in a text in which commas separate them."""
    return frozenset(filter(None, map(str.strip, text.split(","))))


def check_labels(text: str) -> None:
    """Raise ValidationError unless the text is names of letters, digits and ``._=-``, separated by commas."""
    names = split_labels(text)
    if len(names) > MAX_LABELS or not all(map(_LABEL.fullmatch, names)):
        raise ValidationError(f"Write at most {MAX_LABELS} names of letters, digits and . _ = -, separated by commas.")


class Executor(models.Model):
    """A place where sessions can run: a runtime and its settings."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200, unique=True)
    runtime = models.CharField(max_length=64)
    config = ObjectField(default=dict, blank=True)
    max_live = models.PositiveIntegerField(null=True, blank=True)
    """Maximum number of sessions that may run here at once; None: a default that depends on the memory."""
    host = models.ForeignKey(
        "sessions_app.Host", models.SET_NULL, null=True, blank=True, related_name="executors", db_index=False
    )
    """The only host whose supervisors start sessions here; None: each host that has the repository may."""
    pool = models.CharField(max_length=100, blank=True, default="", db_default="")
    """Name of the pool that it belongs to, among executors of the same runtime; empty: none."""
    labels = models.CharField(max_length=500, blank=True, default="", db_default="", validators=[check_labels])
    """What it offers to sessions that its pool places: names, separated by commas."""
    is_default = models.BooleanField(default=False, db_default=False, editable=False)
    """Whether staff have made it the default. Without one, it is the oldest: a new executor is never the default."""
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Since when no new session may use it; its sessions go on. None: it is enabled."""
    disabled_by = models.CharField(max_length=150, blank=True, default="", db_default="", editable=False)
    """The name of the user who disabled it; empty: it is enabled, or was disabled before this was recorded."""
    disabled_by_staff = models.BooleanField(default=False, db_default=False, editable=False)
    """Whether that user was staff: then only staff can enable it."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "executors"
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(fields=("is_default",), condition=Q(is_default=True), name="one_default_executor"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def trusted_agents_only(self) -> bool:
        """Whether agents here share the machine with the control plane."""
        return not plugins.runtime(self.runtime).isolated

    @property
    def label_set(self) -> frozenset[str]:
        """The names in ``labels``."""
        return split_labels(self.labels)

    def clean(self) -> None:
        """Raise ValidationError for unknown runtimes, invalid settings, and what a pool does not allow."""
        self.pool = self.pool.strip()
        try:
            plugins.runtime(self.runtime).check_config(self.config)
        except plugins.UnknownPlugin as error:
            raise ValidationError({"runtime": error.message}) from error
        except ValueError as error:
            raise ValidationError({"config": str(error)}) from error
        if not self.pool:
            return
        if self.max_live is None:
            raise ValidationError({"max_live": "An executor of a pool needs a number of agents at once."})
        others = Executor.objects.filter(pool=self.pool).exclude(pk=self.pk).exclude(runtime=self.runtime)
        if others.exists():
            raise ValidationError({"pool": "The executors of this pool have another runtime. Choose another name."})


class AgentCapability(models.Model):
    """What one version of an agent claims to support, and what was observed.

    A row belongs to one team, profile and executor: name, version and claims are the agent's own words, so they decide
    nothing about an agent that another team, profile or executor runs.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("auth.Group", models.CASCADE, related_name="+")
    profile = models.ForeignKey(AgentProfile, models.CASCADE, related_name="+")
    executor = models.ForeignKey("Executor", models.CASCADE, related_name="+")
    agent_type = models.CharField(max_length=64)
    agent_name = models.CharField(max_length=200, blank=True)
    """As the agent reports it, like the version: a profile may run any command."""
    agent_version = models.CharField(max_length=200, blank=True)
    agent_title = models.CharField(max_length=200, blank=True, default="", db_default="")
    """Its name for people, as the agent reports it; empty: it reports none."""
    capability = models.CharField(max_length=64)
    """Of ``StartResult.capabilities``: load_session, resume_session."""
    claimed = models.BooleanField()
    kept_at = models.DateTimeField(null=True, blank=True)
    """When the capability last worked."""
    kept_proof = models.CharField(max_length=16, blank=True)
    """``verified`` of the receipt: how the success was proven."""
    replayed_at = models.DateTimeField(null=True, blank=True)
    """When it last replayed user messages; None: never observed."""
    broken_at = models.DateTimeField(null=True, blank=True)
    """When the capability last failed; it counts as failed while this is later than ``kept_at``."""
    broken_how = models.CharField(max_length=32, blank=True)
    """``protocol.CapabilityShortfall``."""
    broken_said = models.TextField(blank=True)
    """The agent's own words, or what its answer contradicted; for staff."""
    first_seen_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField()
    """Accurate to the hour."""

    class Meta:
        db_table = "observed_capabilities"
        verbose_name_plural = "agent capabilities"
        ordering = ("agent_type", "agent_name", "agent_version", "capability")
        constraints = (
            models.UniqueConstraint(
                fields=("team", "profile", "executor", "agent_name", "agent_version", "capability"),
                name="observed_capability_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent_type} {self.agent_version}: {self.capability}"

    @property
    def own_name(self) -> str:
        """What the agent calls itself: its title, or else its name."""
        return self.agent_title or self.agent_name


class ExecutorRunning(models.Model):
    """The one row of a session's execution, kept over every restart: all that is needed to find it."""

    class Status(models.TextChoices):
        """``executions.ExecutorStatus`` for the database."""

        STARTING = ExecutorStatus.STARTING.value, "Starting"
        READY = ExecutorStatus.READY.value, "Ready"
        ERROR = ExecutorStatus.ERROR.value, "Error"
        STOPPED = ExecutorStatus.STOPPED.value, "Stopped"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey("sessions_app.TaskSession", on_delete=models.CASCADE, related_name="executions")
    task = models.ForeignKey("sessions_app.Task", on_delete=models.CASCADE, related_name="+")
    executor = models.ForeignKey(Executor, null=True, blank=True, on_delete=models.SET_NULL, related_name="executions")
    runtime = models.CharField(max_length=64)
    host_id = models.CharField(max_length=200, blank=True)
    """Machine, kernel boot and pid namespace that a local execution runs in: its pids mean nothing elsewhere."""
    agentctl_url = models.CharField(max_length=500, blank=True)
    agentctl_port = models.PositiveIntegerField(null=True, blank=True)
    container_id = models.CharField(max_length=128, blank=True)
    pid = models.PositiveIntegerField(null=True, blank=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.STARTING)
    status_reason = models.CharField(max_length=64, blank=True)
    """The reason for the status, for example ``idle``."""
    supports_session_resume = models.BooleanField(null=True, blank=True, default=None)
    """Whether the running agent can resume its conversation; None: not known yet."""
    capability_note = models.TextField(blank=True, default="")
    """Which of the agent's claims failed, in sentences for users; empty: none."""
    supports_workspace_only = models.BooleanField(default=True)
    auth_token = EncryptedTextField(blank=True, default="")
    """The secret that agentctl's bearer tokens are derived from."""
    resume_token = EncryptedTextField(blank=True, default="")
    """The agent's own conversation id; a credential."""
    rejected_resume_token = EncryptedTextField(blank=True, default="")
    """A resume token that was set aside, never deleted: it can be tried again."""
    last_message_uuid = models.CharField(max_length=200, blank=True)
    workspace_path = models.CharField(max_length=4096, blank=True)
    worktree_id = models.CharField(max_length=64, blank=True)
    worktree_path = models.CharField(max_length=4096, blank=True)
    worktree_branch = models.CharField(max_length=255, blank=True)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    error_code = models.CharField(max_length=64, blank=True)
    error_message = models.TextField(blank=True)
    owner = models.CharField(max_length=200, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    generation = models.BigIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True)
    """Identifies the agentctl process that was last seen."""
    journal_epoch = models.CharField(max_length=64, blank=True)
    journal_seq = models.BigIntegerField(default=0)
    """The last journal line that was ingested into the session's log."""
    output_bytes = models.BigIntegerField(default=0)
    """Bytes that the agent's lines have written into the session's log."""
    turn_output_bytes = models.BigIntegerField(default=0)
    """The same since its newest turn began, be it with a prompt or by the agent itself."""
    output_allowed = models.BigIntegerField(default=0)
    """Bytes of the session that users have allowed; 0: the deployment's limit."""
    turn_output_allowed = models.BigIntegerField(default=0)
    """Bytes of the turn that users have allowed; 0: the deployment's limit."""
    output_left_out = models.BigIntegerField(default=0)
    """Bytes that were left out of the log, and that no message of the conversation counts yet."""
    output_limit = models.CharField(max_length=8, blank=True, default="")
    """The limit that was reached, ``turn`` or ``session``: output is left out. Empty: none."""
    snapshot_announced = models.CharField(max_length=64, blank=True, default="")
    """Commit of the newest snapshot that the journal reported."""
    snapshot_arrived = models.CharField(max_length=64, blank=True, default="")
    """Commit of the newest snapshot in the control plane's archive; differs while work has not arrived."""
    snapshot_due_since = models.DateTimeField(null=True, blank=True)
    """Since when a snapshot has been missing from the archive."""
    snapshot_error_code = models.CharField(max_length=64, blank=True, default="")
    """Error code of the last transfer; empty if it succeeded."""
    snapshot_error = models.TextField(blank=True, default="")
    """The same error as a sentence."""
    state = ObjectField(default=dict, blank=True)
    """The runtime's own data, such as agentctl's process identity."""
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = models.Manager["ExecutorRunning"]()

    class Meta:
        db_table = "executors_running"
        verbose_name = "execution"
        indexes = (
            models.Index(fields=("status", "runtime"), name="executors_running_by_status"),
            models.Index(fields=("owner",), name="executors_running_owner"),
            models.Index(fields=("lease_expires_at",), name="executors_running_lease"),
            models.Index(fields=("runtime",), condition=SNAPSHOT_DUE, name="executors_running_snapshots"),
        )
        ordering = ("created_at", "id")

    def __str__(self) -> str:
        return f"execution {self.pk} ({self.status})"

    @staticmethod
    def address_columns(url: str) -> dict[str, object]:
        """Return the columns that hold agentctl's address; a Unix socket or a malformed URL has no port."""
        try:
            port = urlsplit(url).port
        except ValueError:
            port = None
        return {"agentctl_url": url, "agentctl_port": port}

    def facts(self, repository_path: str, base_branch: str, store_id: str = "") -> ExecutionFacts:
        """Return the row as runtimes and the client need it; raises SecretUnreadable."""
        config: Mapping[str, Any] = {}
        if self.executor:
            config = self.executor.config
        return ExecutionFacts(
            id=str(self.pk),
            session_id=str(self.session_id),
            task_id=str(self.task_id),
            runtime=self.runtime,
            host_id=self.host_id,
            agentctl_url=self.agentctl_url,
            auth_token=self.auth_token,
            status=self.status,
            generation=self.generation,
            pid=self.pid,
            container_id=self.container_id,
            repository_path=repository_path,
            store_id=store_id,
            base_branch=base_branch,
            workspace_path=self.workspace_path,
            worktree_path=self.worktree_path,
            worktree_branch=self.worktree_branch,
            worktree_id=self.worktree_id,
            state=dict(self.state),
            config=config,
        )


class SecretKeyCheck(models.Model):
    """A known text, encrypted with the secret key of this installation: a key that does not decrypt it is another one.

    There is one row at most. `executors_app.secret_key` writes and reads it.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    text = EncryptedTextField(default="Kandev reads its secrets with this key.", editable=False)

    class Meta:
        db_table = "secret_key_checks"
        constraints = (models.CheckConstraint(condition=Q(id=1), name="one_secret_key_check"),)

    def __str__(self) -> str:
        return "check of the secret key"
