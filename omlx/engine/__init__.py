"""The engine: requests become sequences, sequences become plans, plans become tokens. Knows no HTTP, no files."""
