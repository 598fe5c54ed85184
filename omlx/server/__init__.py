"""HTTP. Dialects decode requests to one `GenerationRequest` and encode one event stream; nothing here imports mlx."""
