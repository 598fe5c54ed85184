"""What a model declares, whether a draft is compatible with it, and downloads from the hub."""
