"""Translation of splits and text, and the server."""
