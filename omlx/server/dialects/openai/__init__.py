"""The dialects of OpenAI: bodies to `GenerationRequest`s, events to bodies and streams."""
