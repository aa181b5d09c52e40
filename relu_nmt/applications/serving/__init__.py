"""HTTP server for a model: JSON for programs and a page for people."""
