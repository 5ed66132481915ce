"""Record where a repository's branches are pushed to, with a deploy key or token; and test the connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from executors_app.repositories.remote_address import BadAddress, RemoteAddress, parse_address
from executors_app.repositories.remote_failures import RemoteFailed
from executors_app.repositories.remote_keys import BadKey, KeyPair, generate_key, read_key
from executors_app.repositories.remotes import remove_credentials, scan_host_keys
from sessions_app.kernel.services.errors import Conflict, Invalid, NotFound, ReadOnly
from sessions_app.models import Repository, RepositoryRemote, Task

log = logging.getLogger(__name__)

MAX_TOKEN: Final = 4096
TEST_WAIT: Final = 2.0
"""Seconds that a test waits for a push to the same server to end."""


def find_remote(repository: Repository) -> RepositoryRemote | None:
    """Return where a repository's branches are pushed to; None if nothing is recorded."""
    rows = RepositoryRemote.objects.filter(repository=repository)
    return rows.select_related("repository__team", "changed_by", "confirmed_by").first()


def has_remote(task: Task) -> bool:
    """Return whether branches of a task can be pushed somewhere."""
    return RepositoryRemote.objects.filter(repository=task.repository_id).exists()


def require_remote(repository: Repository) -> RepositoryRemote:
    """Return the same; raises NotFound if nothing is recorded."""
    found = find_remote(repository)
    if found is None:
        raise NotFound("No remote is recorded for this repository.")
    return found


def set_address(repository: Repository, text: str, by: User) -> RepositoryRemote:
    """Record where branches are pushed to. Another server gets neither the key nor the token of the one before.

    Raises ReadOnly unless ``by`` is staff, and Invalid for an address that is not allowed.
    """
    _require_staff(by)
    try:
        address = parse_address(text.strip())
    except BadAddress as error:
        raise Invalid(str(error), field="address") from error
    with transaction.atomic():
        row, _ = RepositoryRemote.objects.get_or_create(repository=repository, defaults={"address": address.text})
        row = RepositoryRemote.objects.select_for_update().get(id=row.id)
        if _server_of(row.parsed_address) != _server_of(address):
            _forget_credential(row)
        row.address, row.changed_by = address.text, by
        _forget_test(row)
        row.save()
    _log(row, by, "address recorded")
    return row


def make_key(row: RepositoryRemote, by: User) -> RepositoryRemote:
    """Generate a new deploy key, in place of the one before. Raises ReadOnly."""
    return _replace_key(row, by, generate_key, "deploy key generated")


def store_key(row: RepositoryRemote, text: str, by: User) -> RepositoryRemote:
    """Store a deploy key, in place of the one before. Raises ReadOnly, Invalid for what is no usable key."""

    def read() -> KeyPair:
        try:
            return read_key(text)
        except BadKey as error:
            raise Invalid(str(error), field="private_key") from error

    return _replace_key(row, by, read, "deploy key stored")


def _replace_key(row: RepositoryRemote, by: User, make: Callable[[], KeyPair], what: str) -> RepositoryRemote:
    _require_staff(by)
    if not row.is_ssh:
        raise Conflict("This address logs in with a token. Record an address for ssh first.")
    key = make()

    def change(found: RepositoryRemote) -> None:
        found.private_key, found.public_key = key.private, key.public
        _forget_test(found)

    return _change(row, by, change, what)


def store_token(row: RepositoryRemote, username: str, token: str, by: User) -> RepositoryRemote:
    """Store a token, in place of the one before. Raises ReadOnly, Invalid."""
    _require_staff(by)
    if row.is_ssh:
        raise Conflict("This address logs in with a deploy key. Record an address for https first.")
    token = token.strip()
    if not token or len(token) > MAX_TOKEN or not _is_one_line(token):
        raise Invalid("Enter the token as one line.", field="token")
    if not _is_one_line(username):
        raise Invalid("Enter the user name as one line.", field="username")

    def change(found: RepositoryRemote) -> None:
        found.username, found.token = username.strip(), token
        _forget_test(found)

    return _change(row, by, change, "token stored")


def fetch_host_keys(row: RepositoryRemote, by: User) -> RepositoryRemote:
    """Ask the server for its keys, for a person to compare. Raises ReadOnly, Conflict, RemoteFailed."""
    _require_staff(by)
    if not row.is_ssh:
        raise Conflict("A server reached by https proves itself by its certificate.")
    keys = scan_host_keys(row.parsed_address)

    def change(found: RepositoryRemote) -> None:
        found.scanned_host_keys = "\n".join(map(str, keys))

    return _change(row, by, change, "host keys fetched")


def confirm_host_keys(row: RepositoryRemote, fingerprints: Collection[str], by: User) -> RepositoryRemote:
    """Trust the keys that a person has compared, and no others.

    Raises ReadOnly, Conflict if they are not exactly those that the server last showed.
    """
    _require_staff(by)

    def change(found: RepositoryRemote) -> None:
        shown = found.scanned_keys
        if not shown or {key.fingerprint for key in shown} != set(fingerprints):
            raise Conflict("The server has shown other keys meanwhile. Compare those.")
        found.host_keys = "\n".join(map(str, shown))
        found.confirmed_by, found.confirmed_at = by, timezone.now()
        _forget_test(found)

    return _change(row, by, change, "host keys confirmed")


def check_connection(row: RepositoryRemote, by: User) -> RepositoryRemote:
    """List the branches there, and record whether that worked. Pushes nothing. Raises ReadOnly, SecretUnreadable."""
    _require_staff(by)
    code = ""
    try:
        row.connection().refs(wait=TEST_WAIT)
    except RemoteFailed as error:
        code = str(error.cause)

    def change(found: RepositoryRemote) -> None:
        found.tested_at, found.test_code = timezone.now(), code

    return _change(row, by, change, f"connection tested: {code or 'ok'}")


def delete_remote(row: RepositoryRemote, by: User) -> None:
    """Forget where branches are pushed to, with key and token. Raises ReadOnly."""
    _require_staff(by)
    _log(row, by, "deleted")
    directory = row.directory
    row.delete()
    remove_credentials(directory)


def _change(row: RepositoryRemote, by: User, change: Callable[[RepositoryRemote], None], what: str) -> RepositoryRemote:
    """Apply a change to the row as it is now; raises NotFound if it was deleted or leads to another address."""
    with transaction.atomic():
        found = RepositoryRemote.objects.select_for_update().filter(id=row.id, address=row.address).first()
        if found is None:
            raise NotFound("The remote was changed meanwhile. Look at it again.")
        change(found)
        found.changed_by = by
        found.save()
    _log(found, by, what)
    return found


def _require_staff(by: User) -> None:
    # A server's address decides whom Kandev connects to from its own machine, and a key is worth as much as its
    # owner's: so this needs staff, as adding a repository does.
    if not by.is_staff or not by.is_active or getattr(by, "only_reads", False):
        raise ReadOnly("Only staff can change where branches are pushed to.")


def _server_of(address: RemoteAddress) -> tuple[str, str, int | None]:
    return (address.scheme, address.host, address.port)


def _forget_credential(row: RepositoryRemote) -> None:
    row.private_key = row.public_key = row.username = row.token = ""
    row.scanned_host_keys = row.host_keys = ""
    remove_credentials(row.directory)  # perhaps no next connection removes what a killed process has left
    row.confirmed_by = row.confirmed_at = None


def _forget_test(row: RepositoryRemote) -> None:
    row.tested_at, row.test_code = None, ""


def _is_one_line(text: str) -> bool:
    return text.isprintable() and len(text.splitlines()) <= 1


def _log(row: RepositoryRemote, by: User, what: str) -> None:
    about = {"repository_id": str(row.repository_id), "user_id": by.pk}
    log.info("remote of repository %s: %s by user %s", row.repository_id, what, by.pk, extra=about)
