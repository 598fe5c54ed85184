"""How programs are connected to this server: their variables, flags and files."""
