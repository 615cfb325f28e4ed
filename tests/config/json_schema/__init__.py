"""Tests of `setpoint.config.json_schema`."""
