"""The runtime on other machines keeps the contract, through TLS and one port."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.executors.contract import RuntimeContract


class TestRemote(RuntimeContract):
    """``remote``."""

    bad_config: ClassVar[dict[str, Any]] = {"url": "http://machine.example", "token_file": "machine.token"}
