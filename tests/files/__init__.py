"""Tests of `setpoint.files`."""
