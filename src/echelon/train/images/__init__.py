"""Images: pack directories of files into one file, and load that file onto the device.

Packing works without torch.
"""
