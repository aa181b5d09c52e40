"""Models of other toolkits, read and written."""
