"""What a directory declares beyond its weights (package, tokenizer, pooling), and its download."""
