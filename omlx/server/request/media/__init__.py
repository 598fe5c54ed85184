"""Images of requests: where they come from, what they may be, and how a model's eye gets them."""
