"""Small made-up data and models for public training scripts, each written to a path."""

import array
import json
import pickle
import random
import struct
import subprocess
import sys
import zlib


def write_text(path):
    """Write a text of few words, in lines."""
    chance = random.Random(0)  # noqa: S311  not a secret
    words = [f"word{number}" for number in range(50)]
    lines = [" ".join(chance.choices(words, k=40)) for _ in range(4000)]
    path.write_text("\n".join(lines) + "\n")


def write_tokens(path):
    """Write a folder as nanoGPT's data/*/prepare.py does, with bytes as tokens."""
    path.mkdir(parents=True)
    chance = random.Random(0)  # noqa: S311  not a secret
    for name, size in (("train.bin", 100_000), ("val.bin", 10_000)):
        (path / name).write_bytes(array.array("H", chance.choices(range(64), k=size)).tobytes())
    (path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))


def write_images(path):
    """Write a folder of PNG files in two classes, for training and validation."""
    chance = random.Random(0)  # noqa: S311  not a secret
    for split, count in (("train", 160), ("val", 8)):
        for number in range(count):
            place = path / split / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:03}.png").write_bytes(render_png(chance.randbytes(16 * 16 * 3), 16))
    (path / "validation").symlink_to("val")


def render_png(pixels, side):
    """Return a square PNG file with these RGB bytes."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\0" + pixels[at : at + side * 3] for at in range(0, len(pixels), side * 3))
    head = struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def write_digits(path):
    """Write random images in MNIST's files, as torchvision expects them."""
    place = path / "MNIST" / "raw"
    place.mkdir(parents=True)
    chance = random.Random(0)  # noqa: S311  not a secret
    for name, count in (("train", 2048), ("t10k", 256)):
        images = struct.pack(">4I", 2051, count, 28, 28) + chance.randbytes(count * 28 * 28)
        (place / f"{name}-images-idx3-ubyte").write_bytes(images)
        labels = bytes(chance.choices(range(10), k=count))
        (place / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels)


def write_lightning_digits(path):
    """Write blank images in the files that Lightning's PL_USE_MOCKED_MNIST reads."""
    place = path / "MNIST" / "complete"
    place.mkdir(parents=True)
    code = (
        "import sys, torch\n"
        "for name, count in (('training', 60000), ('test', 64)):\n"
        "    images = torch.zeros(count, 28, 28, dtype=torch.uint8)\n"
        "    labels = torch.zeros(count, dtype=torch.long)\n"
        "    torch.save((images, labels), f'{sys.argv[1]}/{name}.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=True)


def write_tokenizer(path):
    """Write a tokenizer of words and the configuration of a small GPT-2."""
    path.mkdir(parents=True)
    words = {"[UNK]": 0} | {f"word{number}": number + 1 for number in range(50)}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    splitter = {"type": "Whitespace"}
    empty = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": splitter, "model": model}
    (path / "tokenizer.json").write_text(json.dumps({**empty, **tokenizer}))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (path / "tokenizer_config.json").write_text(json.dumps(named))
    size = {"n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64, "vocab_size": 64}
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", **size}))


def write_unet(path):
    """Write the configuration of a small UNet2DModel."""
    path.mkdir(parents=True)
    size = {"sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1}
    blocks = {
        "block_out_channels": [32, 32],
        "down_block_types": ["DownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "UpBlock2D"],
    }
    config = {"_class_name": "UNet2DModel", **size, **blocks}
    (path / "config.json").write_text(json.dumps(config))


def write_clip(path):
    """Write the configuration of a small CLIP."""
    path.mkdir(parents=True)
    vision = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"model_cfg": {"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}}
    (path / "open_clip_config.json").write_text(json.dumps(config))
