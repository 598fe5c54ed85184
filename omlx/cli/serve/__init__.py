"""`omlx serve`: the composition root, the socket, the output, and the end."""
