"""Computing: carries out plans with mlx."""
