"""What an engine must know of a model before it serves it: by its classes, and by short passes."""
