"""Train on windows of uneven logs: a dataset, workers that pack, batches resampled on the model's device.

python examples/resample_dataloader.py
torchrun --nproc-per-node 2 examples/resample_dataloader.py     # each rank takes its share
"""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader

import ridgeline
from ridgeline.trajectory import Stream, on_device


def log(seed: int) -> list[Stream]:
    """Ten seconds of a made-up robot: joints at about 100 Hz, a gripper command at 5 Hz."""
    rng = np.random.default_rng(seed)
    fast = np.sort(rng.uniform(0, 10, 1000))
    slow = np.arange(0, 10, 0.2)
    joints = np.sin(fast[:, None] * rng.uniform(0.5, 2, 6)) + rng.normal(0, 0.01, (1000, 6))
    return [Stream("joints", fast, joints), Stream("gripper", slow, rng.integers(0, 2, len(slow)))]


def main() -> None:
    # Files work the same: TrajectoryDataset("logs/", topics=["joints", "gripper"], window=2.0, stride=0.5)
    dataset = ridgeline.TrajectoryDataset([log(seed) for seed in range(12)], window=1.0, stride=0.5, partial=False)
    sampler = dataset.share()  # this rank's part; everything without torchrun
    loader = on_device(
        DataLoader(
            dataset,
            batch_size=32,
            sampler=sampler,
            collate_fn=ridgeline.collate(hz=50, max_gap=0.5, fill=0.0),
            num_workers=2,
            pin_memory=torch.cuda.is_available(),
        )
    )
    print(f"{dataset}; {sampler}; {len(loader)} batches per epoch")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    width = len(dataset.names)
    model = torch.nn.Sequential(torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Linear(64, 6)).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        losses = []
        for batch in loader:  # values [B, T, D], mask [B, T]
            error = (model(batch.values[:, :-1]) - batch["joints"][:, 1:]).square().mean(dim=-1)
            known = batch.mask[:, 1:] & batch.mask[:, :-1]
            loss = error[known].mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.4f} on {batch.values.device.type}")


if __name__ == "__main__":
    main()
