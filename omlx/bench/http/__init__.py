"""The HTTP layer against the engine alone: the same requests, through a socket and without one."""
