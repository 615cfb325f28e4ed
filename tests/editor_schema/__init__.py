"""Tests of `setpoint.editor_schema`."""
