"""Coding agents against a real server whose model says what the task tells it to."""
