"""Tests of `setpoint.checkpoint`."""
