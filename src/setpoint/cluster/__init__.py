"""Files for cluster schedulers: Slurm batch scripts, and Kubernetes manifests."""
