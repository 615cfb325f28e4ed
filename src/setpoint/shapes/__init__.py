"""Interfaces of components: parameters, batches, protocols and results of models."""
