"""Routes: a class for each group of addresses."""
