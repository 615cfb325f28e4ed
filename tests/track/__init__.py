"""Tests of `setpoint.track`."""
