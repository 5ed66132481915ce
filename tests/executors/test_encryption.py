"""Secrets are encrypted at rest, survive a change of keys, and one lost key spoils no listing."""

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
def test_a_text_comes_back_and_its_column_does_not_show_it(text: str) -> None:
    execution = make_execution(auth_token=text)
    assert ExecutorRunning.objects.get(pk=execution.pk).auth_token == text
    assert stored("auth_token").startswith("v1:")
    assert text not in stored("auth_token")[3:] or text == " "


def test_the_same_secret_is_never_stored_the_same_way_twice() -> None:
    assert encryption.encrypt("secret") != encryption.encrypt("secret")


def test_a_json_value_comes_back_with_its_keys_hidden() -> None:
    AgentProfile.objects.create(name="p", agent_type="demo", env={"API_KEY": "sk-1"}, mcp_servers=[{"name": "é"}])
    profile = AgentProfile.objects.get()
    assert (profile.env, profile.mcp_servers) == ({"API_KEY": "sk-1"}, [{"name": "é"}])
    assert "API_KEY" not in stored("env", "agent_profiles")


def test_database_can_filter_rows_by_whether_a_secret_is_set() -> None:
    make_execution(auth_token="secret", resume_token="")
    assert ExecutorRunning.objects.exclude(auth_token="").filter(resume_token="").exists()
    assert not ExecutorRunning.objects.filter(auth_token="").exists()


@pytest.mark.parametrize("lookup", ["auth_token", "auth_token__contains", "auth_token__in", "auth_token__gt"])
def test_no_other_look_up_pretends_to_work(lookup: str) -> None:
    with pytest.raises(FieldError):
        ExecutorRunning.objects.filter(**{lookup: "secret"}).exists()


def test_the_database_can_move_a_secret_to_another_column() -> None:
    make_execution(resume_token="secret")
    ExecutorRunning.objects.update(rejected_resume_token=F("resume_token"), resume_token="")
    execution = ExecutorRunning.objects.get()
    assert (execution.rejected_resume_token, execution.resume_token) == ("secret", "")


def test_a_former_key_still_opens() -> None:
    with keys(OLD):
        make_execution(auth_token="secret")
    with keys(NEW, OLD):
        assert ExecutorRunning.objects.get().auth_token == "secret"


def test_after_reencryption_the_former_key_is_not_needed_any_more() -> None:
    with keys(OLD):
        make_execution(auth_token="secret", resume_token="token")
    with keys(NEW, OLD):
        assert encryption.reencrypt(ExecutorRunning) == (2, 0)
        assert encryption.reencrypt(ExecutorRunning) == (0, 0)
    with keys(NEW):
        execution = ExecutorRunning.objects.get()
        assert (execution.auth_token, execution.resume_token) == ("secret", "token")


def test_reencryption_counts_what_no_key_opens_and_leaves_it() -> None:
    with keys(OLD):
        make_execution(auth_token="secret")
    before = stored("auth_token")
    with keys(NEW):
        assert encryption.reencrypt(ExecutorRunning) == (0, 1)
    assert stored("auth_token") == before


@pytest.fixture
def locked_out() -> Iterator[ExecutorRunning]:
    """A row whose key is lost."""
    with keys(OLD):
        execution = make_execution(auth_token="secret")
    with keys(NEW):
        yield execution


def test_lost_key_breaks_only_the_secret_not_the_listing(locked_out: ExecutorRunning) -> None:
    readable = make_execution(auth_token="readable")
    listed = {execution.pk: execution for execution in ExecutorRunning.objects.all()}
    assert listed[readable.pk].auth_token == "readable"
    with pytest.raises(SecretUnreadable) as caught:
        _ = listed[locked_out.pk].auth_token
    assert "auth_token" in caught.value.message
    assert str(locked_out.pk) in caught.value.message


def test_a_lost_key_is_named_for_a_deferred_field_too(locked_out: ExecutorRunning) -> None:
    execution = ExecutorRunning.objects.defer("auth_token").get(pk=locked_out.pk)
    with pytest.raises(SecretUnreadable):
        _ = execution.auth_token


def test_row_with_lost_key_can_be_saved_and_keeps_its_secret(locked_out: ExecutorRunning) -> None:
    before = stored("auth_token")
    execution = ExecutorRunning.objects.get()
    execution.status = ExecutorRunning.Status.ERROR
    execution.save()
    assert stored("auth_token") == before
    with keys(OLD):
        assert ExecutorRunning.objects.get().auth_token == "secret"


def test_a_closed_value_shows_nothing(locked_out: ExecutorRunning) -> None:
    values = ExecutorRunning.objects.values_list("auth_token", flat=True)
    assert "v1:" not in f"{list(values)} {values[0]}"


@pytest.mark.parametrize("damaged", ["plain text", "v1:", "v1:????", "v1:AAAA", "v2:AAAA"])
def test_a_damaged_value_is_unreadable_and_no_crash(damaged: str) -> None:
    with pytest.raises(SecretUnreadable):
        encryption.decrypt(damaged)


def test_a_changed_ciphertext_is_noticed() -> None:
    sealed = encryption.encrypt("secret")
    changed = sealed[:-4] + ("AAA=" if not sealed.endswith("AAA=") else "BBB=")
    with pytest.raises(SecretUnreadable):
        encryption.decrypt(changed)
