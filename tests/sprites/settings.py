"""Kandev's settings for a deployment with the fake Sprites API: its sprites' disks are directories of this machine."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from executors_app.runtimes.sprites import organisation
from kandev.settings import *  # noqa: F403 - all of them

organisation.ROOT_PATH = PurePosixPath(os.environ["FAKE_SPRITES_ROOT"])
organisation.HOLD_SOCKET = PurePosixPath(os.environ["FAKE_SPRITES_SOCKET"])
