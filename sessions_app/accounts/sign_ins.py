"""Whether a browser is still signed in, for what is sent to it while it makes no request."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.utils.crypto import constant_time_compare, salted_hmac


def is_signed_in(user: User, session_key: str) -> bool:
    """Return whether ``user`` is signed in by the session with this key, and may be."""
    if not user.is_active:
        return False
    session: Any = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    data = session.load()  # empty once it has expired or ended
    if data.get(SESSION_KEY) != str(user.pk):
        return False
    # Another password ends all other sign-ins, and leaves their rows.
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(data.get(HASH_SESSION_KEY, ""), each) for each in hashes)


def sign_in_mark(session_key: str) -> str:
    """Return what tells a browser whether it has signed in again, and nothing else."""
    return salted_hmac("kandev sign-in mark", session_key, algorithm="sha256").hexdigest()[:16]
