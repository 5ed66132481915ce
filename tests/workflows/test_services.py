"""Keeping workflows, and asking for runs: who may, what is refused, what is made once."""

from __future__ import annotations

import pytest

from tests.workflows.writing import node, workflow

pytestmark = pytest.mark.django_db

CONSTANT = workflow([node("one", "constant", value=1)])
SHELL = workflow([node("say", "shell", script="echo it")])
