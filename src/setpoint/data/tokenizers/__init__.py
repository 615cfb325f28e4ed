"""From bytes to token ids and back: one file per tokenizer."""
