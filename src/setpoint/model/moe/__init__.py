"""Mixture of experts: routers, experts, dispatch among ranks, balance losses."""
