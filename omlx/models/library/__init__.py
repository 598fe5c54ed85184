"""Libraries of model classes: which one has those of a config, and what its code reads."""
