"""A GPT that reads bytes."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

BYTES = 256


@dataclass(frozen=True, kw_only=True)
class Size:
    layers: int
    width: int
    heads: int
    length: int
    """Bytes that it looks back on."""


SIZES = {
    "124m": Size(layers=17, width=768, heads=12, length=4096),
    "tiny": Size(layers=2, width=32, heads=2, length=64),
}


class Block(nn.Module):
    """Attention to what came before, then two linear layers, each added to its input."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        heads = self.attend(self.norm_1(x)).view(samples, length, 3, self.heads, -1)
        query, key, value = heads.transpose(1, 3).unbind(2)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(samples, length, width))
        return x + self.narrow(gelu(self.widen(self.norm_2(x))))


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.bytes = nn.Embedding(BYTES, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, BYTES, bias=False)
        self.head.weight = self.bytes.weight
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("project.weight", "narrow.weight"))  # added to the input
                nn.init.normal_(weight, std=0.02 / (2 * size.layers) ** 0.5 if last else 0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        x = self.bytes(text) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def write_text(model: nn.Module, begin: str, count: int, *, length: int, seed: int = 0) -> str:
    """Continue a text by `count` bytes. Every rank calls it: a sharded model needs all of them."""
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(seed)
    text = torch.tensor([list(begin.encode())], device=device)
    model.eval()
    for _ in range(count):
        outputs = model(text[:, -length:])[0, -1].float()
        chosen = torch.multinomial(outputs.softmax(0).cpu(), 1, generator=draw)
        text = torch.cat([text, chosen.to(device)[None]], dim=1)
    return bytes(text[0].tolist()).decode(errors="replace")
