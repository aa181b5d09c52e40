"""What joins text, tokenisation and vocabulary into a task."""
