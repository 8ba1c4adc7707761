"""The training library: what a script needs beside its model. The one place that imports torch."""
