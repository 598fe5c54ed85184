"""`omlx serve`: the composition root, its socket, what it prints, and how it ends."""
