"""Sessions in Fly.io Sprites: what the runtime ``sprites`` is made of.

As the public documentation has it in November 2026: https://sprites.dev/api (sprites, services, exec, filesystem,
proxy) and https://docs.sprites.dev (concepts/lifecycle, concepts/services, keeping-sprites-running). What it does not
say is not relied upon.
"""
