"""Several ranks on one machine: what an axis costs, what ranks gain, and how long they start."""
