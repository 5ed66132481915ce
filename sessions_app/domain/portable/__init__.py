"""Pure functions of the portable record: its lines, and the rows rebuilt from them."""
