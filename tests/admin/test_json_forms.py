"""Errors of admin forms for invalid JSON."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from executors_app.models import Executor


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"image": "x",\n "memory" 4}', "Expecting &#x27;:&#x27; delimiter (line 2, column 11)."),
        ("{'image': 1}", "Expecting property name enclosed in double quotes (line 1, column 2)."),
        ('{"image": "x"} rest', "Extra data (line 1, column 16)."),
        ("[1]", "Expected a JSON object"),
    ],
)
def test_invalid_json_is_refused_with_its_position(text: str, says: str) -> None:
    staff = Client()
    staff.force_login(User.objects.create(username="operator", is_staff=True))
    form = {"name": "Here", "runtime": "local_standalone", "config": text}
    answer = staff.post("/admin/executors_app/executor/add/", form)
    assert answer.status_code == 200
    assert says in answer.text
    assert not Executor.objects.exists()
