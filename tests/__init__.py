"""Tests of Setpoint; the folders mirror those of `src/setpoint`."""
