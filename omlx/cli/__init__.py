"""The command line. `serve` is the composition root: it builds every part and passes it on."""
