"""A request in no dialect: fields, messages, media, and the stream of its events."""
