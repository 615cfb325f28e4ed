"""What happens every so often while a job trains."""
