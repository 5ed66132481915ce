"""The API of remotes."""
