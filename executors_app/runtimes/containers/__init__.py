"""What the runtimes on Docker engines share; this folder is no runtime of its own."""
