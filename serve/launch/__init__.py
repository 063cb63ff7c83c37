"""Starting and changing a cluster: local runs, checks before a launch, deployment."""
