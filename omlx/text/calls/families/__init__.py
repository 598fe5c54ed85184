"""One module a family: how it writes tool calls."""
