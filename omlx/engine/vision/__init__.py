"""Vision: which images a tower computes when, and passes of a text model that see them."""
