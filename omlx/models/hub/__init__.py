"""The Hugging Face hub: search, downloads that survive a restart, deletion."""
