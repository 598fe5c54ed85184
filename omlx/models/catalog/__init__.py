"""Models on disk: places, discovery, inspection, and resolution of names."""
