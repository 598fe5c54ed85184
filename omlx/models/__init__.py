"""Models: `catalog` (on disk), `library` (their classes), `pool` (in memory), `hub` (downloads)."""
