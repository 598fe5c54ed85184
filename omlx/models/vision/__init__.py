"""Vision: preparing, placing and computing images, per family of vision-language models."""
