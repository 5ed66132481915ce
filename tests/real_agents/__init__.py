"""Tests with published coding agents and a loopback model."""
