"""The KV caches of the rows of one loaded model."""
