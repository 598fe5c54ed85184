"""Measurements and pictures of the dashboard in a browser."""
