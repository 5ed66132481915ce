"""Other systems that recover after a kill, measured in the same run; ``make peers`` installs them."""
