"""What a team can start sessions with: repositories, executors and what runs on them."""
