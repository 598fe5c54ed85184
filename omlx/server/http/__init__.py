"""Between sockets and requests: access, keys, bodies, errors and streams of HTTP."""
