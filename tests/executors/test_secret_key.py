"""A key that is not the database's is noticed, a renewed one is not, and a lost one can be accepted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from executors_app import secret_key
from executors_app.encryption import stored_values
from executors_app.models import AgentProfile, SecretKeyCheck
from executors_app.secret_key import WrongSecretKey
from sessions_app.management.startup import refuse_incompatible_database

pytestmark = pytest.mark.django_db

OLD, NEW, OTHER = "old key " * 8, "new key " * 8, "other key " * 8


@contextmanager
def keys(*secrets: str) -> Iterator[None]:
    with override_settings(SECRET_KEY=secrets[0], SECRET_KEY_FALLBACKS=list(secrets[1:])):
        yield


@pytest.fixture(autouse=True)
def no_check_value() -> None:
    """Begin as a database of an earlier release."""
    SecretKeyCheck.objects.all().delete()


def make_profile() -> None:
    AgentProfile.objects.create(name="p", agent_type="demo", env={"API_KEY": "sk-1"})


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("secret_key", *arguments, stdout=out)
    return out.getvalue()


def refusal(*arguments: str) -> tuple[int, str]:
    with pytest.raises(CommandError) as refused:
        run(*arguments)
    return refused.value.returncode, str(refused.value)


def test_first_start_stores_a_check_value_and_later_ones_accept_the_key() -> None:
    with keys(OLD):
        secret_key.check_secret_key()
        secret_key.check_secret_key()
        assert SecretKeyCheck.objects.count() == 1


def test_another_key_is_refused_before_anything_starts() -> None:
    with keys(OLD):
        secret_key.check_secret_key()
    with keys(OTHER), pytest.raises(CommandError) as refused:
        refuse_incompatible_database()
    assert str(refused.value).startswith("secret_key_wrong: ")
    assert refused.value.returncode == 2


def test_new_key_with_the_old_one_as_fallback_is_accepted_beside_processes_with_the_old_one() -> None:
    with keys(OLD):
        secret_key.check_secret_key()
    with keys(NEW, OLD):
        secret_key.check_secret_key()
    with keys(OLD):
        secret_key.check_secret_key()
        assert not secret_key.is_secret_key_wrong()


def test_old_key_is_missed_until_everything_is_encrypted_with_the_new_one() -> None:
    with keys(OLD):
        make_profile()
        secret_key.check_secret_key()
    with keys(NEW, OLD):
        secret_key.check_secret_key()
    with keys(NEW), pytest.raises(WrongSecretKey):
        secret_key.check_secret_key()
    with keys(NEW, OLD):
        run("--reencrypt")
    with keys(NEW):
        secret_key.check_secret_key()
    with keys(OLD), pytest.raises(WrongSecretKey):
        secret_key.check_secret_key()


def test_start_with_a_fallback_writes_nothing() -> None:
    with keys(OLD):
        secret_key.check_secret_key()
    with keys(NEW, OLD), CaptureQueriesContext(connection) as captured:
        secret_key.check_secret_key()
    assert [query["sql"] for query in captured if not query["sql"].startswith("SELECT")] == []


def test_database_of_an_earlier_release_with_unreadable_secrets_gets_no_check_value() -> None:
    with keys(OLD):
        make_profile()
    with keys(OTHER), pytest.raises(WrongSecretKey):
        secret_key.check_secret_key()
    assert not SecretKeyCheck.objects.exists()
    with keys(OLD):
        secret_key.check_secret_key()


def test_one_readable_secret_proves_the_key_after_an_earlier_loss() -> None:
    with keys(OLD):
        make_profile()
    with keys(NEW):
        make_profile()
        secret_key.check_secret_key()
        assert not secret_key.is_secret_key_wrong()


def test_readable_secret_after_many_lost_ones_proves_the_key() -> None:
    with keys(OLD):
        lost = [AgentProfile(name=f"lost {number}", agent_type="demo", env={"A": "1"}) for number in range(201)]
        AgentProfile.objects.bulk_create(lost)
    with keys(NEW):
        make_profile()
        secret_key.check_secret_key()


def test_readyz_of_a_running_process_names_the_key() -> None:
    with keys(OLD):
        secret_key.check_secret_key()
    with keys(OTHER):
        answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["missing"]) == (503, ["secret_key"])


def test_reencryption_makes_the_old_key_unnecessary() -> None:
    with keys(OLD):
        make_profile()
        secret_key.check_secret_key()
    with keys(NEW, OLD):
        assert "agent profiles: env: 0 readable, 1 with an earlier key\n" in run()
        assert run("--reencrypt").startswith("3 secrets encrypted with the present key.")
    with keys(NEW):
        assert AgentProfile.objects.get().env == {"API_KEY": "sk-1"}
        assert "unreadable" not in run()


def test_loss_is_listed_and_accepted_only_when_confirmed() -> None:
    with keys(OLD):
        make_profile()
        secret_key.check_secret_key()
    with keys(NEW):
        status, reason = refusal("--accept-loss")
        assert (status, reason.startswith("nothing was changed")) == (2, True)
        assert secret_key.is_secret_key_wrong()
        assert "agent profiles: env: 0 readable, 1 unreadable" in run("--accept-loss", "--yes")
        secret_key.check_secret_key()
    with keys(NEW, OLD):  # the lost key is found
        assert AgentProfile.objects.get().env == {"API_KEY": "sk-1"}


def test_nothing_is_accepted_while_every_secret_can_be_read() -> None:
    with keys(OLD):
        make_profile()
        secret_key.check_secret_key()
        assert run("--accept-loss", "--yes") == "Nothing is lost: the present key reads every secret.\n"


@pytest.mark.parametrize("arguments", [(), ("--reencrypt",)], ids=["show", "reencrypt"])
def test_command_says_that_the_key_is_another_one(arguments: tuple[str, ...]) -> None:
    with keys(OLD):
        secret_key.check_secret_key()
    with keys(OTHER):
        assert refusal(*arguments)[1].startswith("secret_key_wrong: ")


def test_check_value_of_a_copy_is_judged_without_its_database(monkeypatch: Any) -> None:
    with keys(OLD):
        secret_key.check_secret_key()
        (stored,) = stored_values(SecretKeyCheck._meta.get_field("text"))
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{stored}\n"))
        assert run("--opens") == ""
    with keys(OTHER):
        monkeypatch.setattr("sys.stdin", io.StringIO(stored))
        assert refusal("--opens")[0] == 2
        monkeypatch.setattr("sys.stdin", io.StringIO(""))  # of an earlier release
        assert run("--opens") == ""


def test_restored_database_is_made_safe_only_with_its_key() -> None:
    with keys(OLD):
        secret_key.check_secret_key()
    with keys(OTHER), pytest.raises(CommandError) as refused:
        call_command("after_restore")
    assert str(refused.value).startswith("secret_key_wrong: ")
