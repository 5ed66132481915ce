"""The ``Status`` objects with which an API server refuses, in its words."""

from __future__ import annotations

from typing import Any

KINDS = {"pods": "Pod", "persistentvolumeclaims": "PersistentVolumeClaim", "secrets": "Secret", "events": "Event"}
"""The kind of every resource of a namespace."""


class Refused(Exception):
    """A request that the API server refuses; ``status`` is the body of the answer."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None):
        super().__init__(message)
        self.code = code
        self.status = failure(code, reason, message, details)


def failure(code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a ``Status`` that says why a request failed."""
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    if reason:
        status["reason"] = reason
    if details is not None:
        status["details"] = details
    return status | {"code": code}


def success(name: str, resource: str, uid: str) -> dict[str, Any]:
    """Return the ``Status`` of a deletion that is complete."""
    details = {"name": name, "kind": resource, "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(resource: str, name: str) -> Refused:
    """Say that there is no such object."""
    return Refused(404, "NotFound", f'{resource} "{name}" not found', {"name": name, "kind": resource})


def already_exists(resource: str, name: str, *, is_terminating: bool) -> Refused:
    """Say that the name is taken, also by an object that is being deleted."""
    message = f'{resource} "{name}" already exists'
    if is_terminating:
        message = f"object is being deleted: {message}"
    return Refused(409, "AlreadyExists", message, {"name": name, "kind": resource})


def other_uid(resource: str, name: str, asked: str, found: str) -> Refused:
    """Say that the object is not the one that the request means."""
    kind = KINDS[resource]
    message = (
        f'Operation cannot be fulfilled on {kind} "{name}": the UID in the precondition ({asked}) does not match the '
        f"UID in record ({found}). The object might have been deleted and then recreated"
    )
    return Refused(409, "Conflict", message, {"name": name, "kind": kind})


def stale(resource: str, name: str) -> Refused:
    """Say that the object has changed since it was read."""
    message = (
        f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified; please apply your '
        "changes to the latest version and try again"
    )
    return Refused(409, "Conflict", message, {"name": name, "kind": resource})


def forbidden(user: str, verb: str, resource: str, name: str, namespace: str) -> Refused:
    """Say that the Role of the user does not allow it."""
    subject = f'{resource} "{name}"' if name else resource
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    group = "authorization.k8s.io" if resource == "selfsubjectaccessreviews" else ""
    plain, _, _ = resource.partition("/")
    subject = subject.replace(resource, plain, 1)
    message = (
        f'{subject} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}" {where}'
    )
    details = {"name": name, "kind": plain} if name else {"kind": plain}
    return Refused(403, "Forbidden", message, details)


def over_quota(resource: str, name: str, quota: str, requested: str, used: str, limited: str) -> Refused:
    """Say that the namespace's quota is used up."""
    message = (
        f'{resource} "{name}" is forbidden: exceeded quota: {quota}, requested: {requested}, used: {used}, '
        f"limited: {limited}"
    )
    return Refused(403, "Forbidden", message, {"name": name, "kind": resource})


def invalid(resource: str, name: str, field: str, problem: str) -> Refused:
    """Say that an object is not valid."""
    kind = KINDS[resource]
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": "FieldValueInvalid", "message": problem, "field": field}],
    }
    return Refused(422, "Invalid", f'{kind} "{name}" is invalid: {field}: {problem}', details)


def immutable_uid(resource: str, name: str, asked: str) -> Refused:
    """Say that a change means another object; the server names the reason twice."""
    kind, problem = KINDS[resource], f'Invalid value: "{asked}": field is immutable'
    cause = {"reason": "FieldValueInvalid", "message": problem, "field": "metadata.uid"}
    details = {"name": name, "kind": kind, "causes": [cause, cause]}
    return Refused(422, "Invalid", f'{kind} "{name}" is invalid: metadata.uid: {problem}', details)


def expired(message: str) -> dict[str, Any]:
    """Return the ``Status`` for a version whose changes are no longer stored."""
    return failure(410, "Expired", message)
