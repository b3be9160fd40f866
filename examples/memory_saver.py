# SPDX-License-Identifier: Apache-2.0
"""Generates and trains in turns, and gives back the memory of what the other half needs.

A script of torch_memory_saver's users: one import is changed. The weights keep their content while
they are paused; the cache is scratch space and loses it.

    commensal run -- python examples/memory_saver.py
"""

import argparse

import torch

from commensal.memory_saver import torch_memory_saver

MIB = 1 << 20


def resident_mib() -> float:
    """Return the memory of this process that is not in files, in MiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache-mib", type=int, default=256)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.Linear(4096, 2048))
    with torch_memory_saver.region(tag="cache"):
        cache = torch.ones(arguments.cache_mib * MIB // 4)
    before = [weight.clone() for weight in model.parameters()]

    for number in range(arguments.rounds):
        cache.normal_()  # generate
        full = resident_mib()
        torch_memory_saver.pause("cache")
        torch_memory_saver.pause("weights")
        print(f"round {number}: {full:.0f} MiB, paused {resident_mib():.0f} MiB", flush=True)
        torch_memory_saver.resume("weights")  # to train, say
        for weight, was in zip(model.parameters(), before, strict=True):
            assert torch.equal(weight, was), "weights changed while they were paused"
        torch_memory_saver.resume("cache")
    print("weights are as they were")


if __name__ == "__main__":
    main()
