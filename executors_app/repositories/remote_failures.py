"""Why a server could not be reached or did not take a push: a stable code, and a sentence with what to do."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from executors_app.wire.errors import RepositoryUnusable


class RemoteCause(StrEnum):
    """Why a connection or a push failed."""

    UNREACHABLE = "remote_unreachable"
    TIMEOUT = "remote_timeout"
    DENIED = "remote_denied"
    NOT_FOUND = "remote_not_found"
    HOST_KEY_UNKNOWN = "remote_host_key_unknown"
    HOST_KEY_CHANGED = "remote_host_key_changed"
    CERTIFICATE = "remote_certificate"
    REDIRECTED = "remote_redirected"
    MOVED = "remote_moved"
    NOT_FAST_FORWARD = "remote_not_fast_forward"
    REFUSED = "remote_refused"
    BUSY = "remote_busy"
    CREDENTIAL_MISSING = "remote_credential_missing"
    FAILED = "remote_failed"


SENTENCES: Final = {
    RemoteCause.UNREACHABLE: "The server cannot be reached. Check its address and the network, then try again.",
    RemoteCause.TIMEOUT: "The server did not finish in time. Try again; nothing is pushed twice.",
    RemoteCause.DENIED: (
        "The server does not accept the key or token. Check that it may write to this repository, or replace it."
    ),
    RemoteCause.NOT_FOUND: (
        "The server has no such repository, or the key or token may not see it. Check the address and its rights."
    ),
    RemoteCause.HOST_KEY_UNKNOWN: "The server's host key is not confirmed. Compare and confirm it first.",
    RemoteCause.HOST_KEY_CHANGED: (
        "The server shows another host key than the one that was confirmed. Nothing was sent. Ask the server’s "
        "administrator; if the key was replaced there, fetch and confirm the new one."
    ),
    RemoteCause.CERTIFICATE: "The server's certificate is not valid for this machine. Nothing was sent.",
    RemoteCause.REDIRECTED: "The server redirects to another address. Enter the repository's present address.",
    RemoteCause.MOVED: (
        "The branch on the server has changed meanwhile. Nothing was overwritten. Look at what is there, then try "
        "again."
    ),
    RemoteCause.NOT_FAST_FORWARD: (
        "The branch on the server has commits that this one lacks. Nothing was overwritten. Bring them in first."
    ),
    RemoteCause.REFUSED: "The server refused the push by its own rules. What it answered is shown below.",
    RemoteCause.BUSY: "Another connection to this server is still open. Try again in a moment.",
    RemoteCause.CREDENTIAL_MISSING: "No deploy key or token is stored for this repository. Staff can add one.",
    RemoteCause.FAILED: "The push failed for a reason that is not known. What the server answered is shown below.",
}

_PATTERNS: Final = (
    (RemoteCause.HOST_KEY_CHANGED, r"remote host identification has changed|offending [a-z0-9]+ key"),
    (RemoteCause.HOST_KEY_UNKNOWN, r"host key verification failed|no [a-z0-9-]+ host key is known"),
    (RemoteCause.CERTIFICATE, r"certificate|ssl routines|gnutls_handshake|tls"),
    (RemoteCause.REDIRECTED, r"unable to update url base from redirection|error: 30[12378]"),
    (
        RemoteCause.DENIED,
        (
            r"permission denied|authentication failed|could not read (?:username|password)|error: 40[13]|http basic: "
            r"access denied|write access to repository not granted|too many authentication failures"
        ),
    ),
    (RemoteCause.NOT_FOUND, r"repository.{0,400}not found|does not appear to be a git repository|error: 404"),
    (RemoteCause.TIMEOUT, r"timed out|timeout|operation too slow"),
    (
        RemoteCause.UNREACHABLE,
        (
            r"could not resolve|connection refused|failed to connect|no route to host|network is unreachable|"
            r"connection closed|connection reset|hung up unexpectedly|couldn't connect|error: 5\d\d"
        ),
    ),
)
_QUOTED: Final = re.compile(r"(?<![a-z])'[^'\n]*'")
"""An address or path in a message; not the apostrophe of a word."""
_COMPILED: Final = tuple((cause, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for cause, pattern in _PATTERNS)

_REJECTIONS: Final = (
    # The connection ended after the commits were sent: the server may have taken them.
    (RemoteCause.FAILED, re.compile(r"^\[remote failure\]")),
    (RemoteCause.MOVED, re.compile(r"stale info|cannot lock ref|failed to update ref|incorrect old value|fetch first")),
    (RemoteCause.NOT_FAST_FORWARD, re.compile(r"non-fast-forward|denying non-fast")),
)


class RemoteFailed(RepositoryUnusable):
    """A server could not be reached, or did not take what was pushed."""

    code = "remote_failed"
    permanent = False

    def __init__(self, cause: RemoteCause, *, messages: str = ""):
        super().__init__(SENTENCES[cause], cause=cause)
        self.cause = cause
        self.messages = messages
        """What the server said; its text is not ours."""


def classify_failure(errors: str, host: str) -> RemoteCause:
    """Return why git could not talk to a server, from its own output in English, whatever the server is called."""
    named = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", re.IGNORECASE)
    reasons = named.sub("''", _QUOTED.sub("''", errors))
    for cause, pattern in _COMPILED:
        if pattern.search(reasons):
            return cause
    return RemoteCause.FAILED


def classify_rejection(reason: str) -> RemoteCause:
    """Return why a server did not move a ref, from the reason in git's report."""
    for cause, pattern in _REJECTIONS:
        if pattern.search(reason):
            return cause
    return RemoteCause.REFUSED
