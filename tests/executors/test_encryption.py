"""Secrets are encrypted at rest and survive a key change; one lost key breaks no listing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.core.exceptions import FieldError
from django.db import connection
from django.db.models import F
from django.test import override_settings

from executors_app import encryption
from executors_app.encryption import SecretUnreadable
from executors_app.models import AgentProfile, ExecutorRunning
from tests.executors.rows import make_execution

pytestmark = pytest.mark.django_db

OLD, NEW = "old key " * 8, "new key " * 8


@contextmanager
def keys(*secrets: str) -> Iterator[None]:
    with override_settings(SECRET_KEY=secrets[0], SECRET_KEY_FALLBACKS=list(secrets[1:])):
        yield


def stored(column: str, table: str = "executors_running") -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM {table}")  # noqa: S608
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("text", ["secret", "ключ 🔑", "x" * 100_000, "v1:not encrypted", " "])
def test_text_is_encrypted_in_its_column(text: str) -> None:
    execution = make_execution(auth_token=text)
    assert ExecutorRunning.objects.get(pk=execution.pk).auth_token == text
    assert stored("auth_token").startswith("v1:")
    assert text not in stored("auth_token")[3:] or text == " "


def test_equal_secrets_have_different_ciphertexts() -> None:
    assert encryption.encrypt("secret") != encryption.encrypt("secret")


def test_json_value_is_encrypted_with_its_keys() -> None:
    AgentProfile.objects.create(name="p", agent_type="demo", env={"API_KEY": "sk-1"}, mcp_servers=[{"name": "é"}])
    profile = AgentProfile.objects.get()
    assert (profile.env, profile.mcp_servers) == ({"API_KEY": "sk-1"}, [{"name": "é"}])
    assert "API_KEY" not in stored("env", "agent_profiles")


def test_database_can_filter_rows_by_whether_a_secret_is_set() -> None:
    make_execution(auth_token="secret", resume_token="")
    assert ExecutorRunning.objects.exclude(auth_token="").filter(resume_token="").exists()
    assert not ExecutorRunning.objects.filter(auth_token="").exists()


@pytest.mark.parametrize("lookup", ["auth_token", "auth_token__contains", "auth_token__in", "auth_token__gt"])
def test_other_lookups_are_refused(lookup: str) -> None:
    with pytest.raises(FieldError):
        ExecutorRunning.objects.filter(**{lookup: "secret"}).exists()


def test_database_can_copy_a_secret_to_another_column() -> None:
    make_execution(resume_token="secret")
    ExecutorRunning.objects.update(rejected_resume_token=F("resume_token"), resume_token="")
    execution = ExecutorRunning.objects.get()
    assert (execution.rejected_resume_token, execution.resume_token) == ("secret", "")


def test_fallback_key_still_decrypts() -> None:
    with keys(OLD):
        make_execution(auth_token="secret")
    with keys(NEW, OLD):
        assert ExecutorRunning.objects.get().auth_token == "secret"


def test_reencryption_makes_the_old_key_unnecessary() -> None:
    with keys(OLD):
        make_execution(auth_token="secret", resume_token="token")
    with keys(NEW, OLD):
        assert encryption.reencrypt(ExecutorRunning) == (2, 0)
        assert encryption.reencrypt(ExecutorRunning) == (0, 0)
    with keys(NEW):
        execution = ExecutorRunning.objects.get()
        assert (execution.auth_token, execution.resume_token) == ("secret", "token")


def test_reencryption_counts_and_keeps_undecryptable_values() -> None:
    with keys(OLD):
        make_execution(auth_token="secret")
    before = stored("auth_token")
    with keys(NEW):
        assert encryption.reencrypt(ExecutorRunning) == (0, 1)
    assert stored("auth_token") == before


@pytest.fixture
def undecryptable() -> Iterator[ExecutorRunning]:
    """Yield a row whose encryption key is lost."""
    with keys(OLD):
        execution = make_execution(auth_token="secret")
    with keys(NEW):
        yield execution


def test_lost_key_breaks_only_the_secret_not_the_listing(undecryptable: ExecutorRunning) -> None:
    readable = make_execution(auth_token="readable")
    listed = {execution.pk: execution for execution in ExecutorRunning.objects.all()}
    assert listed[readable.pk].auth_token == "readable"
    with pytest.raises(SecretUnreadable) as caught:
        _ = listed[undecryptable.pk].auth_token
    assert "auth_token" in caught.value.message
    assert str(undecryptable.pk) in caught.value.message


def test_lost_key_is_reported_for_a_deferred_field(undecryptable: ExecutorRunning) -> None:
    execution = ExecutorRunning.objects.defer("auth_token").get(pk=undecryptable.pk)
    with pytest.raises(SecretUnreadable):
        _ = execution.auth_token


def test_row_with_lost_key_can_be_saved_and_keeps_its_secret(undecryptable: ExecutorRunning) -> None:
    before = stored("auth_token")
    execution = ExecutorRunning.objects.get()
    execution.status = ExecutorRunning.Status.ERROR
    execution.save()
    assert stored("auth_token") == before
    with keys(OLD):
        assert ExecutorRunning.objects.get().auth_token == "secret"


def test_undecryptable_value_shows_nothing(undecryptable: ExecutorRunning) -> None:
    values = ExecutorRunning.objects.values_list("auth_token", flat=True)
    assert "v1:" not in f"{list(values)} {values[0]}"


@pytest.mark.parametrize("damaged", ["plain text", "v1:", "v1:????", "v1:AAAA", "v2:AAAA"])
def test_damaged_value_is_unreadable(damaged: str) -> None:
    with pytest.raises(SecretUnreadable):
        encryption.decrypt(damaged)


def test_changed_ciphertext_is_detected() -> None:
    sealed = encryption.encrypt("secret")
    changed = sealed[:-4] + ("AAA=" if not sealed.endswith("AAA=") else "BBB=")
    with pytest.raises(SecretUnreadable):
        encryption.decrypt(changed)
