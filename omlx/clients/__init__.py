"""Connections of programs to this server: their variables, flags and files."""
