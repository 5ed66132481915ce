"""The runtime on other machines meets the runtime contract, through TLS and one port."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.executors.contract import RuntimeContract


class TestRemote(RuntimeContract):
    """The contract on ``remote``."""

    bad_config: ClassVar[dict[str, Any]] = {"url": "http://machine.example", "token_file": "machine.token"}
