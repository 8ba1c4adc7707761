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


def write_llama(path):
    """Write a tokenizer of words and a small Llama with random weights."""
    write_tokenizer(path)
    model = json.loads((path / "tokenizer.json").read_text())
    words = model["model"]["vocab"]
    ends = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    words |= {word: len(words) + number for number, word in enumerate(ends.values())}
    (path / "tokenizer.json").write_text(json.dumps(model))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    named |= {f"{name}_token": word for name, word in ends.items()}
    (path / "tokenizer_config.json").write_text(json.dumps(named))
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    size |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    size |= {f"{name}_token_id": words[word] for name, word in ends.items()}
    _save_model("LlamaForCausalLM", "LlamaConfig", size, path)


def write_bert(path):
    """Write a tokenizer of words and a small BERT with random weights."""
    path.mkdir(parents=True)
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"word{number}" for number in range(50)]
    (path / "vocab.txt").write_text("\n".join([*marks, *words]) + "\n")
    named = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 64}
    (path / "tokenizer_config.json").write_text(json.dumps(named))
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    size |= {"num_attention_heads": 2}
    _save_model("BertForSequenceClassification", "BertConfig", size, path)


def _save_model(model, config, size, path):
    code = (
        "import json, sys, torch, transformers\n"
        "torch.manual_seed(0)\n"
        "config = getattr(transformers, sys.argv[2])(**json.loads(sys.argv[3]))\n"
        "getattr(transformers, sys.argv[1])(config).save_pretrained(sys.argv[4])\n"
    )
    argv = [sys.executable, "-c", code, model, config, json.dumps(size), str(path)]
    subprocess.run(argv, check=True)


def write_texts(path):
    """Write a dataset of texts, which are also prompts."""
    path.mkdir(parents=True)
    chance = random.Random(0)  # noqa: S311  not a secret
    words = [f"word{number}" for number in range(50)]
    for name, field, length in (("text", "text", 30), ("prompt", "prompt", 6)):
        (path / name).mkdir()
        texts = (" ".join(chance.choices(words, k=length)) for _ in range(2000))
        lines = [json.dumps({field: text}) + "\n" for text in texts]
        (path / name / "train.jsonl").write_text("".join(lines))


def write_pairs(path):
    """Write a dataset of labelled pairs of sentences, as GLUE's mrpc."""
    place = path / "mrpc"
    place.mkdir(parents=True)
    chance = random.Random(0)  # noqa: S311  not a secret
    words = [f"word{number}" for number in range(50)]
    splits = {"train": 32000, "validation": 64}
    for split, count in splits.items():
        rows = [
            {f"sentence{one}": " ".join(chance.choices(words, k=12)) for one in (1, 2)}
            | {"label": number % 2, "idx": number}
            for number in range(count)
        ]
        (place / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = "".join(f"  - split: {split}\n    path: mrpc/{split}.jsonl\n" for split in splits)
    described = f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n"
    (path / "README.md").write_text(described)


def write_metric(path):
    """Write the module of a metric that `evaluate.load` finds by the name of its folder."""
    path.mkdir(parents=True)
    (path / f"{path.name}.py").write_text(
        "import datasets\nimport evaluate\n"
        "class Accuracy(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        kinds = dict.fromkeys(['predictions', 'references'], datasets.Value('int64'))\n"
        "        return evaluate.MetricInfo(\n"
        "            description='', citation='', features=datasets.Features(kinds))\n"
        "    def _compute(self, predictions, references):\n"
        "        pairs = list(zip(predictions, references))\n"
        "        return {'accuracy': sum(a == b for a, b in pairs) / len(pairs)}\n"
    )


def write_cifar(path):
    """Write random images in the files of CIFAR-10."""
    place = path / "cifar-10-batches-py"
    place.mkdir(parents=True)
    code = (
        "import numpy, pathlib, pickle, sys\n"
        "place, chance = pathlib.Path(sys.argv[1]), numpy.random.default_rng(0)\n"
        "for name in [*(f'data_batch_{n}' for n in range(1, 6)), 'test_batch']:\n"
        "    images = chance.integers(0, 256, (2000, 3072), dtype=numpy.uint8)\n"
        "    labels = [number % 10 for number in range(2000)]\n"
        "    (place / name).write_bytes(pickle.dumps({'data': images, 'labels': labels}))\n"
        "(place / 'batches.meta').write_bytes(pickle.dumps({'label_names': list('abcdefghij')}))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=True)


def write_unchecked(path):
    """Write a sitecustomize that lets torchvision read files with other checksums."""
    path.mkdir(parents=True)
    (path / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name != 'torchvision.datasets.utils': return None\n"
        "        sys.meta_path.remove(self)\n"
        "        spec = importlib.util.find_spec(name)\n"
        "        run = spec.loader.exec_module\n"
        "        def exec_module(module):\n"
        "            run(module)\n"
        "            module.check_integrity = lambda path, md5=None: True\n"
        "        spec.loader.exec_module = exec_module\n"
        "        return spec\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
