"""The stand-in answers what a real cluster answered: every recorded exchange is played again and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kubernetes import record
from tests.kubernetes.exchanges import EXCHANGES
from tests.kubernetes.standin.api import NAMESPACE
from tests.kubernetes.standin.cluster import StandIn
from tests.kubernetes.transcript import compared
from tests.services import require

pytestmark = pytest.mark.any_database
LARGEST_RECORDING = 100_000


@pytest.mark.parametrize("name", EXCHANGES)
async def test_stand_in_answers_what_the_real_cluster_answered(name: str) -> None:
    require("kubernetes stand-in")
    recorded = record.read(name)
    forgets_ends = "ContainerStatusUnknown" in json.dumps(recorded)
    with StandIn(forgets_ends=forgets_ends, cleanup_seconds=1.5).serving() as stand_in:
        played = await record.play(name, stand_in, stand_in.kubeconfig(), NAMESPACE)
    for expected, step in zip(recorded, played, strict=True):
        assert compared(step) == compared(expected)


def test_every_recording_has_an_exchange_and_is_small() -> None:
    files = sorted(record.RECORDINGS.glob("*.json"))
    assert [file.stem for file in files] == sorted(EXCHANGES)
    assert all(file.stat().st_size < LARGEST_RECORDING for file in files)


@pytest.mark.parametrize("name", EXCHANGES)
def test_recordings_name_no_machine_and_no_secret(name: str) -> None:
    text = Path(record.RECORDINGS / f"{name}.json").read_text()
    for word in ("eyJ", "Bearer", "/tmp/", "127.0.0.1", "10.2"):
        assert word not in text
