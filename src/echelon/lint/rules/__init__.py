"""One module per topic; each ends with its table of rules."""
