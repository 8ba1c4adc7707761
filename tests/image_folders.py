"""Small folders of images whose every pixel is known."""

from PIL import Image


def pixels(number, height=6, width=8):
    """Return the bytes of an image, different for every number."""
    return bytes((number * 37 + k * 11) % 256 for k in range(height * width * 3))


def save(path, number, height=6, width=8):
    """Save an image without loss, under a name that may end in .jpg: readers look inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.frombytes("RGB", (width, height), pixels(number, height, width))
    image.save(path, "PNG")


def class_folders(folder, *, classes=("ant", "bee", "cow"), per_class=4):
    """Make `<class>/<k>.png`; images are numbered through."""
    for label, name in enumerate(classes):
        for k in range(per_class):
            save(folder / name / f"{k:04}.png", label * per_class + k)
    return folder
