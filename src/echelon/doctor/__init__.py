"""Render the results of `echelon doctor`."""
