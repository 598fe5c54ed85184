"""Coding agents against a real server with a scripted model."""
