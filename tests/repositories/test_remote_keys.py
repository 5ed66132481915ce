"""Deploy keys that are generated or pasted, and host keys that servers show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from executors_app.repositories.remote_keys import BadKey, generate_key, read_host_keys, read_key


def test_generated_key_is_one_that_ssh_understands(tmp_path: Path) -> None:
    pair = generate_key()
    (tmp_path / "key").write_text(pair.private)
    (tmp_path / "key").chmod(0o600)
    shown = subprocess.run(["ssh-keygen", "-yf", str(tmp_path / "key")], check=True, capture_output=True, text=True)
    assert shown.stdout.split()[:2] == pair.public.split()[:2]
    assert read_key(f"\n{pair.private}\n").public == pair.public
    assert pair.private not in repr(pair)


def test_pasted_text_that_is_no_usable_key_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "passphrase", "-f", str(locked)], check=True)
    for text, why in (
        ("", "OpenSSH"),
        ("ssh-ed25519 AAAA", "OpenSSH"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----", "OpenSSH"),
        (locked.read_text(), "passphrase"),
        ("x" * 20_000, "too long"),
    ):
        with pytest.raises(BadKey, match=why):
            read_key(text)


def test_host_keys_of_a_hostile_server_are_bounded() -> None:
    kind, blob, _ = generate_key().public.split()
    (found,) = read_host_keys([f"host {kind} {blob}", f"{kind} {blob}", f"host ssh-rsa {blob}", "host", f"x {kind} !"])
    assert (found.type, found.blob) == (kind, blob)
    assert found.fingerprint.startswith("SHA256:")
    many = [f"host {generate_key().public.rsplit(' ', 1)[0]}" for _ in range(20)]
    assert len(read_host_keys(many)) == 8
