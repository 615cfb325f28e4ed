"""Runs on this disk: an index of folders of them, what people say of them, and a filter."""
