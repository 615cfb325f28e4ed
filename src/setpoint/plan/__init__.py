"""What can be known of a job before it runs, on any machine and without torch."""
