"""Tests of `setpoint.cli.sources`."""
