"""No new account gets a name that looks like another user's, however it is created."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client

from sessions_app.accounts.teams import name_skeleton
from tests.accounts.conftest import browser_of
from tests.pages.world import World

CYRILLIC_ADA = "\u0430d\u0430"
LOOK_ALIKES = [CYRILLIC_ADA, "ad\u0251", "ada\u200b", "\u00e5da", "Ada", "ADA"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bill", "biIl"),
        ("bill", "bi1l"),
        ("bob", "b0b"),
        ("martin", "rnartin"),
        ("wendy", "vvendy"),
        ("ada", "\uff41da"),
    ],
)
def test_names_that_look_alike_have_one_skeleton(one: str, other: str) -> None:
    assert name_skeleton(one) == name_skeleton(other)


@pytest.mark.parametrize(("one", "other"), [("ada", "adam"), ("ali", "all"), ("ada.b", "ada-b"), ("user1", "user2")])
def test_names_that_look_different_have_different_skeletons(one: str, other: str) -> None:
    assert name_skeleton(one) != name_skeleton(other)


@pytest.mark.parametrize("name", LOOK_ALIKES)
class TestLookAlikeNameIsRefused:
    def test_people_page_refuses_it(self, name: str, staff: Client, world: World) -> None:
        answer = staff.post("/settings/people/", {"username": name})
        assert answer.status_code == 422
        assert User.objects.filter(username=name).count() == 0

    def test_admin_refuses_it(self, name: str, world: World) -> None:
        root = browser_of(User.objects.create_superuser("root"))
        given = {"username": name, "usable_password": "false"}
        answer = root.post("/admin/auth/user/add/", given)
        assert (answer.status_code, User.objects.filter(username=name).exists()) == (200, False)
        changed = root.post(f"/admin/auth/user/{world.bob.pk}/change/", {"username": name})
        assert changed.status_code == 200
        world.bob.refresh_from_db()
        assert world.bob.username == "bob"

    def test_every_other_way_refuses_it(self, name: str, world: World) -> None:
        for make in (User.objects.create_user, User.objects.create_superuser):
            with pytest.raises(ValidationError):
                make(name)
        with pytest.raises(CommandError, match=r"user ?name"):
            call_command("createsuperuser", username=name, email="a@b.example", interactive=False)
        world.bob.username = name
        with pytest.raises(ValidationError):
            world.bob.save()


def test_existing_accounts_keep_working(world: World) -> None:
    User.objects.bulk_create([User(username=CYRILLIC_ADA), User(username="ADA")])  # not by our forms
    for user in User.objects.all():
        user.first_name = "Somebody"
        user.save()
        assert browser_of(user).get("/").status_code == 200
    root = browser_of(User.objects.create_superuser("root"))
    old = User.objects.get(username=CYRILLIC_ADA)
    given = {"username": CYRILLIC_ADA, "first_name": "Old", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    assert root.post(f"/admin/auth/user/{old.pk}/change/", given).status_code == 302
    old.refresh_from_db()
    assert old.first_name == "Old"


@pytest.mark.parametrize("name", ["eve smith", "ada ", "eve\x08", "eve\n", "eve/ada", ""])
def test_unsupported_characters_in_a_name_are_refused(name: str, world: World) -> None:
    with pytest.raises(ValidationError, match="letters a to z"):
        User(username=name).save()
