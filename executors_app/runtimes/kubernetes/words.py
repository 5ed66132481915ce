"""What a cluster says about a Pod or a request, as a stable code and one sentence with the fix.

Messages of a cluster may contain what an agent wrote, and are shown only to staff, cut to a limit.
"""

from __future__ import annotations

import re
from typing import Any, Final

from executors_app.wire.errors import LaunchFailed, RuntimeUnavailable

TEXT_LIMIT: Final = 300


class ClusterUnavailable(RuntimeUnavailable):
    """The cluster does not answer."""

    code = "cluster_unavailable"


class ClusterLoginRefused(RuntimeUnavailable):
    """The cluster does not accept the credentials."""

    code = "cluster_login_refused"


class ClusterRoleTooSmall(RuntimeUnavailable):
    """The credentials do not have all rights that sessions need."""

    code = "cluster_role_too_small"


class ClusterNamespaceMissing(RuntimeUnavailable):
    """The cluster has no such namespace, or deletes it."""

    code = "cluster_namespace_missing"


class ClusterListTooLarge(RuntimeUnavailable):
    """The namespace has more objects than can be read at once."""

    code = "cluster_list_too_large"


class ClusterQuotaExceeded(RuntimeUnavailable):
    """The namespace's quota is used up."""

    code = "cluster_quota_exceeded"


class PodRefused(LaunchFailed):
    """The cluster refused the Pod."""

    code = "pod_refused"


class PodUnschedulable(LaunchFailed):
    """No node can take the Pod."""

    code = "pod_unschedulable"


class PodImageNotPulled(LaunchFailed):
    """The image could not be pulled."""

    code = "pod_image_not_pulled"


class PodVolumeNotBound(LaunchFailed):
    """The cluster has no volume for the session."""

    code = "pod_volume_not_bound"


class PodStillEnding(LaunchFailed):
    """The Pod of this session is still ending."""

    code = "pod_still_ending"


class PodEndUnknown(LaunchFailed):
    """The Pod that used this session's volume is gone, and nobody saw its end."""

    code = "pod_end_unknown"


class PodEvicted(LaunchFailed):
    """The cluster evicted the Pod."""

    code = "pod_evicted"


class PodOutOfMemory(LaunchFailed):
    """The Pod ran out of memory while it started."""

    code = "pod_out_of_memory"


class PodNotReady(LaunchFailed):
    """The Pod was not ready in time."""

    code = "pod_not_ready"


REFUSALS: Final = (PodRefused, ClusterQuotaExceeded, ClusterRoleTooSmall, ClusterNamespaceMissing)
"""Answers to a request that has certainly changed nothing."""


class NotFoundError(LaunchFailed):
    """The object does not exist."""


class ConflictError(LaunchFailed):
    """The object exists already, or was changed meanwhile."""


class GoneError(LaunchFailed):
    """The list from which a watch starts is too old."""


def shorten(text: object) -> str:
    """Return a text of the cluster without control characters, cut to a limit."""
    clean = "".join(char if char.isprintable() else " " for char in str(text)[: 4 * TEXT_LIMIT])
    return " ".join(clean.split())[:TEXT_LIMIT]


_QUOTA: Final = re.compile(r"exceeded quota: ([a-z0-9.-]{1,253})")


def refusal(status: int, said: object, what: str, namespace: str) -> Exception:
    """Return the error for an answer of the API server; ``what`` is the request, such as ``create pods``."""
    message = shorten(said)
    about = {"for_staff": message, "status": status}
    if status == 401:
        return ClusterLoginRefused(
            "The cluster does not accept the credentials. Renew them in the kubeconfig of this executor.", **about
        )
    if status == 403:
        if found := _QUOTA.search(message):
            return ClusterQuotaExceeded(
                f"The quota {found[1]} of the namespace {namespace} is used up. Raise it, or end sessions there.",
                **about,
            )
        if "violates PodSecurity" in message:
            return PodRefused(
                f"The namespace {namespace} does not admit the Pod. Sessions need the Pod Security level baseline.",
                **about,
            )
        if "being terminated" in message:
            return ClusterNamespaceMissing(
                f"The namespace {namespace} is being deleted. Wait until it is gone, and create it again.", **about
            )
        return ClusterRoleTooSmall(
            f"The credentials may not {what} in the namespace {namespace}. Apply the Role of the documents there.",
            **about,
        )
    if status == 404:
        return NotFoundError("The cluster has no such object.", **about)
    if status == 409:
        return ConflictError("The object exists already, or was changed meanwhile.", **about)
    if status == 410:
        return GoneError("The list is too old.", **about)
    if status == 429 or status >= 500:
        return ClusterUnavailable(f"The cluster cannot answer now (HTTP {status}).", **about)
    return PodRefused(f"The cluster refused to {what} (HTTP {status}). Check the settings of this executor.", **about)


def list_too_large(namespace: str, kind: str) -> ClusterListTooLarge:
    """Return the error for a list that is read no further; ``kind`` is its resource, such as ``pods``."""
    return ClusterListTooLarge(
        f"The namespace {namespace} has more {kind} of this Kandev than can be read at once. Nothing is decided about "
        "sessions there. Remove what manage.py orphans lists, or spread sessions over executors with other namespaces."
    )


def missing_rights(missing: list[str], namespace: str) -> ClusterRoleTooSmall:
    """Return the error that names every right that is missing, such as ``watch pods``."""
    return ClusterRoleTooSmall(
        f"The credentials may not {', '.join(missing)} in the namespace {namespace}. Apply the Role of the documents "
        "there.",
        missing=missing,
    )


def no_rights(namespace: str) -> ClusterRoleTooSmall:
    """Return the error for credentials that lack every right."""
    return ClusterRoleTooSmall(
        f"The credentials may do nothing that sessions need in the namespace {namespace}. Check the name of the "
        "namespace in this executor's settings, or apply the Role of the documents there."
    )


def namespace_missing(namespace: str) -> ClusterNamespaceMissing:
    """Return the error for a namespace that does not exist."""
    return ClusterNamespaceMissing(
        f"The cluster has no namespace {namespace}. Create it, or correct the namespace in this executor's settings."
    )


def with_staff(error: LaunchFailed, said: Any) -> LaunchFailed:
    """Return the error with what the cluster said, for staff only."""
    error.details["for_staff"] = shorten(said)
    return error
