"""Container images: how a runtime is called, and where the image comes from."""
