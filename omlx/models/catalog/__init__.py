"""Models on disk: places, discovery, inspection, and the resolution of names."""
