"""Events and fields are promised to every client: they may be added, and are never removed or changed."""

from __future__ import annotations

import pytest

from tests.events.contract import declared, promised

ADD = "run: .venv/bin/python -m tests.events.contract"


@pytest.mark.parametrize("name", sorted(promised()))
def test_promised_event_has_all_its_fields(name: str) -> None:
    assert name in declared()
    fields = declared()[name]
    assert {field: fields.get(field) for field in promised()[name]} == promised()[name]


def test_every_event_and_field_is_in_the_contract() -> None:
    new = {
        f"{name}.{field}"
        for name, fields in declared().items()
        for field in ["", *fields]
        if name not in promised() or (field and field not in promised()[name])
    }
    assert new == set(), ADD
