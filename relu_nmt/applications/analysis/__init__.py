"""What trained models attend to, and keep in the memories of their feed-forward networks."""
