"""``manage.py secret_key``: which stored secrets the secret key reads; renew them, or go on after its loss."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from executors_app import secret_key
from executors_app.secret_key import SecretColumn
from sessions_app.kernel.rules.wording import plural
from sessions_app.management.output import VisibleCommand
from sessions_app.management.startup import (
    EXIT_COULD_NOT_RUN,
    KEY_CHECK_MIGRATION,
    WRONG_KEY,
    refuse_wrong_secret_key,
    report_database_errors,
)

CONSEQUENCES = (
    "Everybody has to sign in again.",
    "Wait keys cannot be shown again; programs that have one can still use it. Permission requests get new ones.",
    "Agents whose token cannot be read cannot be reached: stop their sessions, or wait until agentctl gives up.",
    "Enter environments and MCP servers of agent profiles, keys and tokens of repositories, and webhooks again.",
    "Workflow triggers have to be confirmed again.",
)
"""What follows from the loss of a key, besides the secrets that are listed."""
MAX_CHECK_VALUE = 4096
"""Characters of a check value that are read from standard input."""


class Command(VisibleCommand):
    """Show which secrets can be read, and change nothing unless an option says so."""

    help = (
        "Show which stored secrets the secret key reads. Encrypt them with a new key, or go on after the key is lost."
    )
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add what can be done."""
        actions = parser.add_mutually_exclusive_group()
        actions.add_argument(
            "--reencrypt",
            action="store_true",
            help="encrypt everything with the present key, so that KANDEV_SECRET_KEY_FALLBACKS is no longer needed",
        )
        actions.add_argument(
            "--accept-loss",
            action="store_true",
            help="the earlier key is lost: from now on take the present one for the right one (with --yes)",
        )
        actions.add_argument(
            "--opens",
            action="store_true",
            help="only say whether the key decrypts the check value on standard input, as the database has it",
        )
        parser.add_argument("--yes", action="store_true", help="confirm --accept-loss")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show, renew or accept. Exits with status 1 if the key is another one, with 2 if nothing could be done."""
        if options["opens"]:
            self._judge_check_value(sys.stdin.read(MAX_CHECK_VALUE).strip())
            return
        with report_database_errors():
            if options["reencrypt"]:
                self._reencrypt()
            elif options["accept_loss"]:
                self._accept_loss(is_confirmed=options["yes"])
            else:
                self._show()

    def _judge_check_value(self, stored: str) -> None:
        if stored and secret_key.opens_nothing(stored):
            raise CommandError(WRONG_KEY, returncode=EXIT_COULD_NOT_RUN)

    def _show(self) -> None:
        self._show_columns(secret_key.secret_columns())
        if secret_key.is_secret_key_wrong():
            raise CommandError(WRONG_KEY, returncode=1)

    def _reencrypt(self) -> None:
        refuse_wrong_secret_key()
        count = secret_key.reencrypt_all()
        columns = secret_key.secret_columns()
        self.stdout.write(f"{plural(count, '1 secret', '{} secrets')} encrypted with the present key.")
        self._show_columns([column for column in columns if column.unreadable])
        self.stdout.write("KANDEV_SECRET_KEY_FALLBACKS is no longer needed to decrypt; cookies of earlier keys end.")

    def _accept_loss(self, *, is_confirmed: bool) -> None:
        if KEY_CHECK_MIGRATION not in MigrationRecorder(connection).applied_migrations():
            self.stdout.write("This database is of an earlier release, which does not check its key. Migrate it first.")
            return
        lost = [column for column in secret_key.secret_columns() if column.unreadable]
        if not lost and not secret_key.is_secret_key_wrong():
            self.stdout.write("Nothing is lost: the present key reads every secret.")
            return
        self._show_columns(lost)
        for line in CONSEQUENCES:
            self.stdout.write(line)
        if not is_confirmed:
            raise CommandError(
                "nothing was changed; to go on without these secrets, stop Kandev everywhere and add --yes",
                returncode=EXIT_COULD_NOT_RUN,
            )
        secret_key.accept_present_key()
        self.stdout.write(
            "The present key is the right one from now on. The lost secrets stay as they are: if the earlier key is "
            "found, add it to KANDEV_SECRET_KEY_FALLBACKS."
        )

    def _show_columns(self, columns: list[SecretColumn]) -> None:
        for column in columns:
            counts = [f"{column.current} readable"]
            if column.earlier:
                counts.append(f"{column.earlier} with an earlier key")
            if column.unreadable:
                counts.append(f"{column.unreadable} unreadable")
            self.stdout.write(f"{column.label}: {', '.join(counts)}")
