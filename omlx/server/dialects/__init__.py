"""API dialects: bodies to `GenerationRequest`s, events to bodies and streams."""
