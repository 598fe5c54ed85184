"""`omlx bench speculation`: every way to speculate against plain decoding, with tokens compared."""
