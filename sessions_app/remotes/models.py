"""Where a repository's branches are pushed to, and what logs in there."""

from __future__ import annotations

import uuid
from pathlib import Path

from django.conf import settings
from django.db import models

from executors_app.encryption import EncryptedTextField, SecretUnreadable
from executors_app.repositories.remote_address import MAX_ADDRESS, RemoteAddress, parse_address
from executors_app.repositories.remote_keys import HostKey, read_host_keys
from executors_app.repositories.remotes import Credential, Remote
from sessions_app.accounts.team_scope import TeamModel
from sessions_app.catalogue.models import Repository

_DIRECTORY = "remotes"


class RepositoryRemote(TeamModel):
    """The server that a repository's branches are pushed to, with a deploy key or a token.

    Releases without this table delete repositories and users without looking at it, so the database does not enforce
    these references.
    """

    team_path = "repository__team"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    repository = models.OneToOneField(Repository, models.CASCADE, related_name="remote", db_constraint=False)
    address = models.CharField(max_length=MAX_ADDRESS)
    private_key = EncryptedTextField(blank=True, default="", editable=False)
    public_key = models.TextField(blank=True, default="")
    """Of the deploy key, for people to copy; empty: there is none."""
    username = models.CharField(max_length=200, blank=True, default="")
    """Sent with the token."""
    token = EncryptedTextField(blank=True, default="", editable=False)
    scanned_host_keys = models.TextField(blank=True, default="")
    """What the server showed when it was last asked, one key per line. It proves nothing."""
    host_keys = models.TextField(blank=True, default="")
    """The keys that a person has confirmed, one per line."""
    confirmed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    confirmed_at = models.DateTimeField(null=True, blank=True)
    tested_at = models.DateTimeField(null=True, blank=True)
    test_code = models.CharField(max_length=64, blank=True, default="")
    """Why the last test failed; empty: it did not, or there was none."""
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", db_constraint=False
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta(TeamModel.Meta):
        db_table = "repository_remotes"
        ordering = ("address", "id")

    def __str__(self) -> str:
        return f"remote of {self.repository_id}"

    @property
    def parsed_address(self) -> RemoteAddress:
        """The address, which was checked when it was stored."""
        return parse_address(self.address)

    @property
    def is_ssh(self) -> bool:
        """Whether a key logs in, rather than a token."""
        return self.parsed_address.is_ssh

    @property
    def has_token(self) -> bool:
        """Whether a token is stored, perhaps one that the current secret keys do not decrypt."""
        try:
            return bool(self.token)
        except SecretUnreadable:
            return True

    @property
    def is_ready(self) -> bool:
        """Whether everything is there that a push needs."""
        if self.is_ssh:
            return bool(self.public_key and self.host_keys)
        return self.has_token

    @property
    def confirmed_keys(self) -> list[HostKey]:
        """The keys of the server that a person has confirmed."""
        return read_host_keys(self.host_keys.splitlines())

    @property
    def scanned_keys(self) -> list[HostKey]:
        """The keys that the server showed when it was last asked."""
        return read_host_keys(self.scanned_host_keys.splitlines())

    def connection(self) -> Remote:
        """Return what talks to the server. Raises SecretUnreadable."""
        address = self.parsed_address
        if address.is_ssh:
            credential = Credential(private_key=self.private_key, host_keys=tuple(self.confirmed_keys))
        else:
            credential = Credential(username=self.username, token=self.token)
        return Remote(address, credential, self.directory)

    @property
    def directory(self) -> Path:
        """Where a connection writes what logs in, while it is open."""
        return Path(settings.KANDEV_DATA_DIR) / _DIRECTORY / str(self.id)
