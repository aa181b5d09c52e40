"""A model behind HTTP: JSON for programs and a page for people."""
