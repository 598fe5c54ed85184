"""KV caches of rows that share a pass and are rolled back one by one."""
