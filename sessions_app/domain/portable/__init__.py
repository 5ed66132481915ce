"""The portable record, the pure half: lines, rows, and what they rebuild."""
