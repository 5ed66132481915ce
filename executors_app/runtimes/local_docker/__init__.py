"""Sessions in containers of this machine's Docker engine."""
