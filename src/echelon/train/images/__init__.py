"""Images: from folders of files to one packed file, and from there onto the device.

Everything up to `packing` works without torch.
"""
