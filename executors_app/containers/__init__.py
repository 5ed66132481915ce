"""Sessions in containers of a Docker engine: what the Docker runtimes are made of."""
