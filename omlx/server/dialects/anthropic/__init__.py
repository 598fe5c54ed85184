"""The dialect of Anthropic: bodies to `GenerationRequest`s, events to bodies and streams."""
