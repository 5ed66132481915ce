"""Error responses of the API: always ``{code, message, details}``, with a stable code."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.core.exceptions import ValidationError as ModelInvalid
from django.db import IntegrityError
from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions as drf
from rest_framework.fields import get_error_detail
from rest_framework.permissions import AllowAny
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import APIView, set_rollback

from executors_app.wire.errors import AgentctlRefused, ExecutorError
from sessions_app.kernel import database_errors
from sessions_app.kernel.rules.states import IllegalMove
from sessions_app.kernel.services.errors import Invalid, SessionsError, Throttled
from sessions_app.redaction.visible_text import make_visible

log = logging.getLogger(__name__)

VALIDATION_ERROR: Final = "validation_error"
NO_FIELD: Final = "non_field_errors"
INTERNAL_ERROR: Final = "Internal server error. The details are in the server's log."

STATUS_BY_CODE: Final = {
    VALIDATION_ERROR: 400,
    "invalid_answer": 400,
    "not_authenticated": 401,
    "permission_denied": 403,
    "token_invalid": 403,
    "not_found": 404,
    "unknown_setting": 404,
    "token_expired": 410,
    "token_consumed": 410,
    "token_revoked": 410,
    "too_large": 413,
    "unsupported_media_type": 415,
    Throttled.code: 429,
    "agentctl_unreachable": 503,
    "checks_unavailable": 503,
    "runtime_unavailable": 503,
    database_errors.DATABASE_FULL.code: 503,
    database_errors.DATABASE_UNAVAILABLE.code: 503,
    database_errors.DATABASE_BUSY.code: 503,
}
"""HTTP status by code; a code that is not listed has 409."""

_EXECUTOR_CODES: Final = {
    "agentctl_unreachable": "agentctl_unreachable",
    "agentctl_foreign": "agentctl_unreachable",
    "agentctl_outdated": "agentctl_outdated",
    "repository_unusable": VALIDATION_ERROR,
    "stale_generation": "stale_generation",
    "worktree_missing": "worktree_missing",
    "not_kept": "not_found",
}
"""API code by code of an ExecutorError; one that is not listed becomes ``runtime_unavailable``."""

_AGENTCTL_CODES: Final = {
    *(VALIDATION_ERROR, "not_found", "too_large", "stale_generation", "worktree_missing", "file_changed"),
}
"""Error codes of agentctl that are passed on; any other becomes ``conflict``."""

_CODES_BY_STATUS: Final = {400: VALIDATION_ERROR, 401: "not_authenticated", 403: "permission_denied", 404: "not_found"}


class PayloadTooLarge(drf.APIException):
    """The request body exceeds the limit."""

    status_code = 413
    default_detail = "The request body is too large."
    default_code = "too_large"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Status, body and headers of an error response."""

    status: int
    code: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """What every error response contains; the message is for people, and may quote a stored text."""
        return {"code": self.code, "message": make_visible(self.message), "details": self.details}

    @classmethod
    def from_code(
        cls, code: str, message: str, details: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> ErrorResponse:
        """Create a response with the status that belongs to the code."""
        return cls(STATUS_BY_CODE.get(code, 409), code, message, details or {}, headers or {})


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response to an exception of a view."""
    answer = error_response(error, "an API request")
    set_rollback()
    request = context.get("request")
    if request is not None:  # an error is JSON even where the view renders another type
        request.accepted_renderer, request.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
    return Response(answer.body, status=answer.status, headers=answer.headers)


def error_response(error: Exception, what: str) -> ErrorResponse:
    """Return the response to an exception of ``what``; an unexpected one is logged, and its response says nothing."""
    answer = _expected_error_response(error)
    if answer is None:
        log.error("%s failed", what, exc_info=error)
        answer = ErrorResponse(500, "internal_error", INTERNAL_ERROR)
    return answer


def _expected_error_response(error: Exception) -> ErrorResponse | None:
    if isinstance(error, SessionsError):
        if isinstance(error, Throttled):
            headers = {"Retry-After": str(error.retry_after)}
        else:
            headers = {}
        return ErrorResponse.from_code(error.code, error.message, _details(error), headers)
    if isinstance(error, ExecutorError):
        return _executor_error(error)
    if isinstance(error, IllegalMove):
        return ErrorResponse.from_code("conflict", "This is not possible in the current state.", {"state": error.state})
    if isinstance(error, IntegrityError):
        return ErrorResponse.from_code("conflict", "This already exists, or is in use.")
    if (trouble := database_errors.classify_error(error)) is not None:
        message, headers = f"{trouble.what} {trouble.next_step}", {"Retry-After": str(trouble.retry_after)}
        return ErrorResponse(STATUS_BY_CODE[trouble.code], trouble.code, message, {}, headers)
    translated = _translate_django_error(error)
    if isinstance(translated, drf.APIException):
        return _rest_framework_error(translated)
    return None


def _details(error: SessionsError) -> dict[str, Any]:
    """Return the details; those of an invalid field in the shape that serializers use."""
    details = dict(error.details)
    if isinstance(error, Invalid) and "field" in details:
        return {details["field"]: [error.message]}
    return details


def _executor_error(error: ExecutorError) -> ErrorResponse:
    if isinstance(error, AgentctlRefused):
        code = "conflict"
        if error.refusal in _AGENTCTL_CODES:
            code = error.refusal
        return ErrorResponse.from_code(code, error.message)
    return ErrorResponse.from_code(_EXECUTOR_CODES.get(error.code, "runtime_unavailable"), error.message)


def _translate_django_error(error: Exception) -> Exception:
    if isinstance(error, Http404):
        return drf.NotFound("Not found.")
    if isinstance(error, PermissionDenied):
        return drf.PermissionDenied()
    if isinstance(error, RequestDataTooBig):
        return PayloadTooLarge()
    if isinstance(error, ModelInvalid):
        return drf.ValidationError(get_error_detail(error))
    return error


def _rest_framework_error(error: drf.APIException) -> ErrorResponse:
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    if isinstance(error, drf.ValidationError):
        if isinstance(error.detail, dict):
            details = error.detail
        else:
            details = {NO_FIELD: error.detail}
        return ErrorResponse(400, VALIDATION_ERROR, _first_message(details), details)
    code = _CODES_BY_STATUS.get(error.status_code) or str(error.default_code)
    return ErrorResponse(error.status_code, code, str(error.detail), {}, headers)


def _first_message(details: dict[str, Any]) -> str:
    """Return the first error, prefixed with its field."""
    name, message = next(iter(details.items()))
    while isinstance(message, (list, dict)):
        if isinstance(message, dict):
            message = list(message.values())
        message = next(filter(None, message), "This value is not valid.")
    if name == NO_FIELD:
        return str(message)
    return f"{name}: {message}"


@extend_schema(exclude=True)
class NotFoundView(APIView):
    """Any other address below the API's root, for every method."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Respond with 404."""
        raise drf.NotFound("There is no API endpoint at this address. API addresses end with a slash.")

    options = http_method_not_allowed
