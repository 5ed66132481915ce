"""Names of users and teams: long ones, and many of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from sessions_app.accounts.teams import check_user_name, invite_member
from sessions_app.kernel.services.errors import Invalid
from tests.entrances.shapes import SIZES, mixture, repeat
from tests.growth import measure_growth
from tests.transaction_guard import of_the_test

# Only the processor time of our own processes is measured, so the database does not matter.
pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.mark.parametrize("shape", [mixture, lambda size: repeat("Il10rnvv", size)], ids=["mixture", "look-alikes"])
def test_long_name_is_refused_at_a_cost_in_proportion_to_its_length(shape: Any) -> None:
    staff = User.objects.create_user("staff")

    def refuse(name: str) -> None:
        with pytest.raises(Invalid), of_the_test():
            invite_member(None, name, "", "member", staff)

    measure_growth(refuse, shape, sizes=SIZES).assert_bounded()


def test_checking_a_name_costs_at_most_in_proportion_to_the_number_of_accounts() -> None:
    def accounts(number: int) -> str:
        User.objects.all().delete()
        names = (f"{repeat('Il10rnvv', 140)}{at:06}" for at in range(number))
        User.objects.bulk_create(User(username=name) for name in names)
        return repeat("Il10rnvv", 140) + "OOOOOO"

    def check(name: str) -> None:
        with pytest.raises(ValidationError):
            check_user_name(name)

    measure_growth(check, accounts, sizes=(500, 1_000, 2_000, 4_000, 8_000)).assert_bounded()
