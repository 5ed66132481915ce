"""How dates and times are shown where no template names a format, as in the admin."""
