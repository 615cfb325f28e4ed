"""Mixture of experts: routers, experts and what keeps their load even."""
