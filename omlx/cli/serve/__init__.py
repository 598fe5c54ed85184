"""`omlx serve`: the composition root, its socket, its output, and its end."""
