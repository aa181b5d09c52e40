"""Read and write models of other toolkits."""
