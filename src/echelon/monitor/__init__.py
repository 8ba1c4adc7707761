"""Views of a run: its state, its time, its reports, and the web page."""
