"""Fixtures that every area may use."""

from __future__ import annotations
