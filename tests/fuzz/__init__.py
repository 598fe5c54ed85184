"""Whatever is sent to the server, it answers or refuses: no 500, no hang, nothing left behind, memory flat."""
