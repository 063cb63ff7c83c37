"""What happens before a cluster runs: layered files, and checks of a cluster file against what it is to serve."""
