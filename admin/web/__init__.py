"""Shared by all pages: addresses, layout, language, rendering, static files."""
