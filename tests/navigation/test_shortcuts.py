"""Every key of the table is acted on, once, and the help page lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from sessions_app.navigation.rules.shortcuts import KEYBOARD_SHORTCUTS, SESSION_KEYS


def test_every_action_of_the_table_has_its_function() -> None:
    script = (Path(settings.BASE_DIR) / "frontend/static/kandev/keys.js").read_text()
    block = script[script.index("const ACTIONS = {") : script.index("};", script.index("const ACTIONS = {"))]
    functions = set(re.findall(r"^  (\w+)[:,]", block, re.MULTILINE))
    assert functions == {each.action for each in SESSION_KEYS if each.action}


def test_keys_are_single_and_each_means_one_thing() -> None:
    keys = [each.key for each in SESSION_KEYS]
    assert all(len(key) == 1 for key in keys)
    assert len(set(keys)) == len(keys)
    assert set(keys) <= {key for key, _ in dict(KEYBOARD_SHORTCUTS)["Session"]}
