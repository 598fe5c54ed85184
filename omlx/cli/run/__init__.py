"""`omlx run`: chat in the terminal."""
