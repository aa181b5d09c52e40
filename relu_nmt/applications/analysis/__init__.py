"""Analysis of trained models: attention weights, feed-forward memories, branches of the layers."""
