"""The model: a decoder-only transformer, its configuration, initialization and size."""
