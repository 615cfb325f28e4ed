"""Setpoint: training from one configuration that fully determines the run."""

__version__ = "0.1.0"
