"""Two small torch models, typical of parallel training: a ResNet and a BERT."""

from __future__ import annotations

from typing import Any

CLASSES, VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 100, 8192, 64, 256, 4, 4
STAGES = (32, 64, 128, 256)  # channels; 32 × 32 images, halved at every stage after the first


def build_model(name: str) -> Any:
    """The model, with the same weights on every rank."""
    import torch

    torch.manual_seed(0)
    return {"resnet": _build_resnet, "bert": _build_bert}[name]()


def make_batch(name: str, rows: int, rank: int, turn: int) -> tuple[Any, Any]:
    """The inputs and labels of a rank in a turn."""
    import torch

    generator = torch.Generator().manual_seed(1000 * turn + rank)
    if name == "resnet":
        return torch.randn(rows, 3, 32, 32, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)
    tokens, labels = (torch.randint(VOCABULARY, (rows, LENGTH), generator=generator) for _ in range(2))
    return tokens, labels


def compute_loss(model: Any, inputs: Any, labels: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


def count_flops(name: str, rows: int) -> int:
    """Flops of one step on one rank: the products of the forward pass, three times (backward needs them twice)."""
    if name == "bert":
        tokens, layer = rows * LENGTH, 2 * (4 * WIDTH * WIDTH + 8 * WIDTH * WIDTH) + 4 * LENGTH * WIDTH
        return 3 * tokens * (LAYERS * layer + 2 * WIDTH * VOCABULARY)
    side, channels_in, total = 32, 3, 2 * 9 * 3 * STAGES[0] * 32 * 32
    channels_in = STAGES[0]
    for k, channels in enumerate(STAGES):
        side //= 2 if k else 1
        total += (
            2
            * side
            * side
            * (
                9 * channels_in * channels
                + 9 * channels * channels
                + channels_in * channels * (channels_in != channels)
            )
        )
        channels_in = channels
    return 3 * rows * (total + 2 * channels_in * CLASSES)


def count_parameters(name: str) -> int:
    """Number of weights of the model."""
    if name == "bert":
        return (VOCABULARY + LENGTH) * WIDTH + LAYERS * (12 * WIDTH * WIDTH + 13 * WIDTH)
    total, channels_in = (9 * 3 + 2) * STAGES[0], STAGES[0]
    for channels in STAGES:
        total += (
            9 * channels_in * channels
            + 9 * channels * channels
            + 4 * channels
            + channels_in * channels * (channels_in != channels)
        )
        channels_in = channels
    return total + (channels_in + 1) * CLASSES


def _build_resnet() -> Any:
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, channels_in: int, channels: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
                nn.BatchNorm2d(channels),
            )
            self.short = (
                nn.Identity() if channels_in == channels else nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            )

        def forward(self, x: Any) -> Any:
            return (self.body(x) + self.short(x)).relu()

    blocks = [
        Block(channels_in, channels, 1 if channels == STAGES[0] else 2)
        for channels_in, channels in zip((STAGES[0], *STAGES), STAGES, strict=False)
    ]
    stem = [nn.Conv2d(3, STAGES[0], 3, 1, 1, bias=False), nn.BatchNorm2d(STAGES[0]), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGES[-1], CLASSES))


def _build_bert() -> Any:
    import torch
    from torch import nn

    class Bert(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, WIDTH)
            self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
            )
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

        def forward(self, x: Any) -> Any:
            return self.layers(self.words(x) + self.places) @ self.words.weight.T

    return Bert()
