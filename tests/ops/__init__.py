"""Tests of `setpoint.ops`."""
