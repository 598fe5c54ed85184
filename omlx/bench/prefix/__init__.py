"""What kept prefixes are worth: servers side by side, over HTTP."""
