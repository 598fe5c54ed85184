"""The dashboard: feature folders with their pages, API endpoints and views. No import of mlx."""
