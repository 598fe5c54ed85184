"""The command line, and the composition root: `serve` builds everything and hands it to each other."""
