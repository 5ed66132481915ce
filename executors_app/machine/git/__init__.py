"""The repository and worktree of a session: made, found, rebuilt and described."""
