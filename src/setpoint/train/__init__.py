"""The training job: its root config, build order, loop and state."""
