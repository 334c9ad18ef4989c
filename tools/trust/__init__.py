"""What is measured once about embedded networks and ships with the package, for proofs of heatmaps."""
