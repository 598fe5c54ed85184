"""What the engine does while no request is open."""
