"""Data-parallel training on real data that ships in a package: scikit-learn's 1,797 handwritten digits.

The same file runs unchanged on a TPU slice, in `ttj run`, under torchrun and as one plain process. The global batch and
its order do not depend on the number of ranks, so every one of these computes the same gradients up to rounding.
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import ttj


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--global-batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument(
        "--checkpoint", help="file that rank 0 writes after every epoch, and that a restart resumes from"
    )
    return parser.parse_args()


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images as rows of 64 values in 0..1 and labels 0..9: 1,437 to train on, 360 to test."""
    data, target = load_digits(return_X_y=True)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data, dtype=torch.float32)[order] / 16
    labels = torch.tensor(target, dtype=torch.long)[order]
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def shard(indices: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """This rank's contiguous part of a global batch whose length is a multiple of the world size."""
    return indices.view(world, -1)[rank]


def answers(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """Right answers and all answers over the whole test set; each rank counts its own stripe."""
    with torch.no_grad():
        right = (model(images[rank::world]).argmax(1) == labels[rank::world]).sum()
    counted = torch.tensor([right.item(), len(labels[rank::world])], dtype=torch.float32, device=images.device)
    if world > 1:
        dist.all_reduce(counted)
    return counted


def main() -> None:
    args = arguments()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if args.global_batch % world:
        raise SystemExit(f"--global-batch {args.global_batch} is not a multiple of the {world} ranks")
    device = ttj.device()
    if world > 1:
        dist.init_process_group(ttj.backend())
    images, labels, test_images, test_labels = (t.to(device) for t in digits())
    bare = network().to(device)
    optimizer = torch.optim.SGD(bare.parameters(), lr=args.lr, momentum=0.9)
    first = 0
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    model = DistributedDataParallel(bare) if world > 1 else bare

    steps = len(images) // args.global_batch
    for epoch in range(first, args.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for step in range(steps):
            batch = order[step * args.global_batch : (step + 1) * args.global_batch]
            mine = shard(batch, rank, world).to(device)
            loss = cross_entropy(model(images[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ttj.report(epoch * steps + step + 1, metrics={"loss": loss}, total=args.epochs * steps)
        if args.checkpoint and rank == 0:
            state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)

    counted = answers(model, test_images, test_labels, rank, world)
    if rank == 0:
        print(
            f"trained {args.epochs} epochs of {steps} steps on {world} x {device.type}, "
            f"global batch {args.global_batch}"
        )
        print(f"test accuracy: {100 * counted[0] / counted[1]:.1f} %")
    if world > 1:
        # Gloo's threads drop a collective's tensors after it is over. Where one of them is the last to hold a tensor
        # while Python ends, the process aborts: so `counted` is kept until here, and the ranks wait for each other.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
