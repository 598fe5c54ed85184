"""Tools that run outside the model: MCP servers and web search, named in settings."""
