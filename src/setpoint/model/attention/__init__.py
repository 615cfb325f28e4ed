"""Attention: modules, masks, backends and the key-value cache."""
