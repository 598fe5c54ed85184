"""Processes of a model in stages: a supervisor, a leader in `omlx serve`, followers."""
