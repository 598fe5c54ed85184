"""What the server tells about itself. Never what its users say."""
