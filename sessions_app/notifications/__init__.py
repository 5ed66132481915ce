"""People who asked for it are told by mail or webhook what needs them; a delivery is retried and counted."""
