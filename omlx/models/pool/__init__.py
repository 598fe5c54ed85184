"""Models in memory: load queue, loading, eviction, and leases for requests."""
