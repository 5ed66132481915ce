"""Every action of the sockets, from the frame of a client to its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import transaction

from sessions_app.api.errors import PayloadTooLarge
from sessions_app.kernel.services.errors import Invalid
from sessions_app.stream.live.authentication import Principal, Subscription
from sessions_app.stream.socket_actions import ACTIONS, parse_acknowledgement, read_frame, run_action
from tests.api.world import PERMISSION, World, make_world
from tests.entrances.shapes import SIZES, fill, many_fields, mixture, nested
from tests.growth import measure_growth
from tests.transaction_guard import of_the_test

pytestmark = pytest.mark.any_database  # only the processor time of our own processes is measured

PAYLOADS: dict[str, dict[str, Any]] = {
    "task.session.resume": {"mode": "auto"},
    "task.session.prompt": {"message_id": "m", "text": "Go on"},
    "task.session.permission.respond": {"permission_id": PERMISSION, "option_id": "allow", "resume_token": "kwt_x"},
}
FILLED = ("text", "permission_id", "option_id", "resume_token")


@pytest.fixture
def world(db: None) -> World:
    """Return the rows of a session."""
    return make_world()


@pytest.fixture
def subscription(world: World) -> Subscription:
    """Return what a member's socket follows."""
    return Subscription(Principal(world.member.pk), world.task.id, world.session.id)


def frame_of(action: str, size: int) -> str:
    """Return a frame of about ``size`` characters."""
    payload = PAYLOADS.get(action, {})
    filled = {name: fill(value, mixture(size // 3)) if name in FILLED else value for name, value in payload.items()}
    unknown = {**many_fields(size // 3), "unknown": nested(size // 3)}
    return json.dumps({"type": "request", "id": "1", "action": action, "payload": unknown | filled})


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_frame_costs_at_most_in_proportion_to_its_size(subscription: Subscription, action: str) -> None:
    def receive(text: str) -> None:
        try:
            frame = read_frame(text)
        except (Invalid, PayloadTooLarge):
            return
        with of_the_test():
            run_action(subscription, frame.get("action"), frame.get("payload"))
            transaction.set_rollback(True)

    measure_growth(receive, lambda size: frame_of(action, size), sizes=SIZES).assert_bounded()


def test_acknowledgement_costs_at_most_in_proportion_to_its_size(subscription: Subscription) -> None:
    def receive(text: str) -> None:
        with pytest.raises(Invalid):
            parse_acknowledgement(subscription, read_frame(text))

    measure_growth(
        receive, lambda size: json.dumps({"type": "ack", "seq": mixture(size), "session_id": nested(size)}), sizes=SIZES
    ).assert_bounded()
