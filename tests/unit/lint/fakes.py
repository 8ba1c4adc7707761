"""Stand-ins for what lint reads."""

import os


class TextFiles:
    """Files in memory."""

    def __init__(self, texts, folders=frozenset()):
        self._texts = texts
        self._folders = folders

    def read(self, path):
        return self._texts.get(os.path.normpath(path))

    def is_folder(self, path):
        return os.path.normpath(path) in self._folders
