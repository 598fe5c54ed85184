"""SQLite files of omlx: one way to open, lock, migrate and replace them."""
