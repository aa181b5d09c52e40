"""Programs built on the toolkit: a server, a sweep, analysis, converters."""
