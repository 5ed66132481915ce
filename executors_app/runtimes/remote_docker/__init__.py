"""Sessions in containers of a Docker engine on another machine."""
