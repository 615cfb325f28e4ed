"""Runs that are disturbed in every way that a test can arrange, and then compared."""

PORT = "SETPOINT_TORTURE_PORT"
"""The variable with the port of the tracker's server; without it, rows go nowhere."""
