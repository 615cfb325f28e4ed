"""Devices and ranks."""
