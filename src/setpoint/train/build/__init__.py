"""Construction of the objects that train a job."""
