"""Model libraries: which has the classes of a config, and which keys its code reads."""
