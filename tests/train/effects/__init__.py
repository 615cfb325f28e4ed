"""Tables of what each field changes; `test_config_effects.py` runs them."""
