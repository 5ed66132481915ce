"""Parts of the Docker runtimes: sessions in containers of a Docker engine."""
