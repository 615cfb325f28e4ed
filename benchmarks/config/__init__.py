"""Setpoint's kernel beside other configuration systems, on one common tree."""
