"""Sweeps: many points from one configuration, all of them checked before any is used."""
