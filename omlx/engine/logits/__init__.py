"""Operations on a row of logits before a token is drawn."""
