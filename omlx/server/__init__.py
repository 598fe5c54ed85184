"""HTTP: dialects read bodies into one `GenerationRequest` and encode one event stream."""
