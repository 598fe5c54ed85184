"""Metrics and logs of the server. Never any text of prompts or output."""
