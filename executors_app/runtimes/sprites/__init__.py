"""Parts of the runtime ``sprites``: sessions in Fly.io Sprites.

Based on the public documentation of November 2026: https://sprites.dev/api (sprites, services, exec, filesystem,
proxy) and https://docs.sprites.dev (concepts/lifecycle, concepts/services, keeping-sprites-running). Undocumented
behaviour is not relied upon.
"""
