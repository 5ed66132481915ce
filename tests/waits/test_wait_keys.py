"""The keys of waits: the first settlement is final, and a secret follows from the id and the server's key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from sessions_app.waits.rules.wait_keys import (
    KEY_PREFIX,
    REQUESTED_KINDS,
    WaitKeyFacts,
    WaitKeyState,
    WaitKind,
    derive_secret,
    most_usable_state,
    recover_secret,
    secret_digest,
    wait_key_state,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEFORE, AFTER = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)


def expected_state(facts: WaitKeyFacts) -> str:
    """Return the state by the rules: used and revoked are final, then the expiry counts."""
    if facts.consumed_at:
        return "consumed"
    if facts.revoked_at:
        return "revoked"
    if facts.expired_at or facts.expires_at in {BEFORE, NOW}:
        return "expired"
    return "active"


def test_key_state_follows_the_rules_for_every_history() -> None:
    moments = product((None, BEFORE), (None, BEFORE), (None, BEFORE), (None, BEFORE, NOW, AFTER))
    every = [WaitKeyFacts(*values) for values in moments]
    assert len(every) == 32
    assert [facts for facts in every if wait_key_state(facts, NOW) != expected_state(facts)] == []


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([], None),
        ([WaitKeyState.REVOKED, WaitKeyState.ACTIVE], WaitKeyState.ACTIVE),
        ([WaitKeyState.CONSUMED, WaitKeyState.EXPIRED], WaitKeyState.CONSUMED),
        ([WaitKeyState.REVOKED, WaitKeyState.EXPIRED], WaitKeyState.EXPIRED),
    ],
)
def test_strongest_key_of_a_wait_counts(states: list[WaitKeyState], found: WaitKeyState | None) -> None:
    assert most_usable_state(states) == found


def test_secret_has_256_bits_and_depends_on_id_and_key() -> None:
    secrets = {derive_secret(token_id, key) for token_id, key in product(("id-1", "id-2"), ("key-1", "key-2"))}
    assert len(secrets) == 4
    assert {len(secret.removeprefix(KEY_PREFIX)) for secret in secrets} == {43}
    assert derive_secret("id-1", "key-1") in secrets


@pytest.mark.parametrize(("keys", "is_shown"), [(["old"], True), (["new", "old"], True), (["new"], False), ([], False)])
def test_secret_can_be_shown_while_its_key_is_known(keys: list[str], is_shown: bool) -> None:
    secret = derive_secret("id-1", "old")
    assert recover_secret("id-1", secret_digest(secret), keys) == (secret if is_shown else None)


def test_stored_hash_reveals_nothing_of_the_secret() -> None:
    secret = derive_secret("id-1", "key")
    assert secret not in secret_digest(secret)
    assert len(secret_digest(secret)) == 64


def test_members_request_every_kind_of_wait_except_permission() -> None:
    assert set(REQUESTED_KINDS) == set(WaitKind) - {WaitKind.PERMISSION}
