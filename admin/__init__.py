"""The dashboard: each feature folder holds its pages, API endpoints and views. No import of mlx."""
