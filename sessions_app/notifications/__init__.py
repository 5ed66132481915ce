"""People who asked for it are told by mail, webhook or push what needs them; a delivery is retried and counted."""
