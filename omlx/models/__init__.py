"""Models: `catalog` (on disk), `package` (what they declare), `pool` (in memory)."""
