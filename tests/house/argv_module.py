"""Prints its name and arguments, for a test of how programs are started."""

import sys

sys.stdout.write(f"{__name__} {sys.argv[1:]}\n")
