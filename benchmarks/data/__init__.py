"""The loader of data, as it is and beside others."""
