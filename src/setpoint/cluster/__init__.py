"""Files that schedulers of clusters take: Slurm's batch scripts, and manifests of Kubernetes."""
