"""One module per theme; each ends with its table of rules."""
