"""The tree of `setpoint.train.config.Job` for other configuration systems."""
