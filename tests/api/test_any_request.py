"""Every request, valid or not, gets a response that the schema documents, and never a 500."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sessions_app.accounts.models import ApiToken
from tests.rights.world import ROLES, Cast, make_cast
from tests.services import ROOT
from tests.transaction_guard import of_the_test

EXAMPLES: Final = 10
"""Requests for each operation."""
CONFORMS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
AWAY: Final = {"agentctl_unreachable", "runtime_unavailable"}
"""Codes of a 503 that are allowed here, where no agentctl runs."""
SCHEMA: Final = schemathesis.openapi.from_path(ROOT / "docs" / "openapi.yaml")
SCHEMA.app = get_wsgi_application()
STREAMS: Final = "/events/stream"
"""An endless response, covered by other tests."""
FOUND: Final = [one.ok() for one in SCHEMA.get_all_operations() if isinstance(one, Ok)]
OPERATIONS: Final = {one.label: one for one in FOUND if not one.path.endswith(STREAMS)}


@pytest.fixture(autouse=True)
def _keep_the_connection() -> Iterator[None]:
    """Keep the connection open after a request: the test's transaction belongs to it."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def cast(db: None) -> Cast:
    return make_cast()


def headers_of(user: User | None) -> dict[str, str]:
    if user is None:
        return {}
    _, key = ApiToken.mint(user, "fuzz", ApiToken.Scope.WRITE, None)
    return {"Authorization": f"Token {key}"}


@contextlib.contextmanager
def rolled_back() -> Iterator[None]:
    """Roll back everything that the block writes."""
    with of_the_test():
        yield
        transaction.set_rollback(True)


def check_error_format(response: Any) -> None:
    body = response.json()
    assert body.keys() == {"code", "message", "details"}, body
    assert body["message"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_response_conforms_to_the_schema(label: str, cast: Cast) -> None:
    headers = {role: headers_of(cast.people[role]) for role in ROLES}

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(), who=st.sampled_from(ROLES), is_there=st.booleans())
    def ask(case: Any, who: str, is_there: bool) -> None:
        if is_there:
            case.path_parameters = {name: str(cast.names.get(name, one)) for name, one in case.path_parameters.items()}
        with rolled_back():
            response = case.call(headers=headers[who])
            if response.status_code >= 400:
                check_error_format(response)
            if response.status_code == 503:
                assert response.json()["code"] in AWAY
            else:
                case.validate_response(response, checks=CONFORMS)

    ask()
