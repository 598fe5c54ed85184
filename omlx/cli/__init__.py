"""The command line. `serve` is the composition root: it builds all parts and passes them on."""
