"""The engine: requests become sequences, sequences plans, plans tokens. Knows no HTTP, no files."""
