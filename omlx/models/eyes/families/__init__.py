"""One module for each kind of vision tower."""
