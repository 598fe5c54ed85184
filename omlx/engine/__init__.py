"""The engine: requests become rows, rows plans, plans tokens. Knows no HTTP, no files."""
