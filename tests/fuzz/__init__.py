"""Whatever comes over a border, from an agent, a browser or a file: drawn at random, with what is known to be odd."""
