"""What trained models do: statistics of their attention, and the weights themselves."""
