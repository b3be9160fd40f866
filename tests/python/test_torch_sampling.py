# SPDX-License-Identifier: Apache-2.0
"""Sampled windows in a guaranteed job: the one exception to "no op callback", and a short one."""

from __future__ import annotations

import ctypes
import time

import pytest
from torch_support import Facts, Job, library_dir, run_scenario, wait_until

PROBE = "libcommensal_torch_probe.so"
OPS = 20_000  # of which PyTorch samples one in a hundred within a window


def train(steps: int) -> list[float]:
    """Train a small network; return its losses."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(32, 64)), torch.arange(32) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def observed() -> int:
    """Ask PyTorch for how many ops some FUNCTION callback would run."""
    folder = library_dir()
    assert folder is not None
    return int(ctypes.CDLL(str(folder / PROBE)).commensal_testing_observed_ops(OPS))


def scenario_guaranteed() -> Facts:
    """Train through a few windows, asking PyTorch all along whether a callback is on."""
    import torch

    torch.set_num_threads(1)
    alone = train(200)
    facts: Facts = {"observed_before": observed()}
    job = Job.start(job_class="guaranteed")
    same, on = True, 0
    began = time.monotonic()

    def enough() -> bool:
        nonlocal same, on
        same = same and train(200) == alone
        on += observed() > 0
        samples = job.stats()["samples"]
        return bool(samples["windows_total"] >= 2 and samples["ops_total"] > 0)

    wait_until(enough, "two windows, and samples in them", deadline_s=150)
    facts["seconds"] = time.monotonic() - began
    facts["samples"] = job.stats()["samples"]
    before = job.stats()["samples"]["ops_total"]
    wait_until(lambda: observed() == 0, "the window's end")
    facts["on"] = on
    facts["losses_as_alone"] = same
    job.shutdown()
    train(50)
    facts["after_the_end"] = {"observed": observed(), "before": before}
    return facts


@pytest.fixture(scope="module")
def guaranteed() -> Facts:
    return run_scenario(scenario_guaranteed, deadline_s=200)


def test_outside_of_windows_no_callback_is_installed(guaranteed: Facts) -> None:
    assert guaranteed["observed_before"] == 0
    assert guaranteed["after_the_end"]["observed"] == 0


def test_windows_tell_what_runs(guaranteed: Facts) -> None:
    samples = guaranteed["samples"]
    assert samples["compute_seconds_total"] + samples["memory_seconds_total"] > 0
    assert samples["on_core_seconds_total"] > 0
    assert {op["work"] for op in samples["top"]} <= {"compute", "memory"}
    assert all(op["name"].startswith("aten::") and op["samples"] > 0 for op in samples["top"])


def test_windows_are_counted_and_far_between(guaranteed: Facts) -> None:
    samples = guaranteed["samples"]
    assert samples["windows_total"] <= guaranteed["seconds"] / 5 + 1
    assert samples["window_seconds_total"] > 0


def test_c21_results_are_the_same_through_windows(guaranteed: Facts) -> None:
    assert guaranteed["losses_as_alone"]


def scenario_opportunistic() -> Facts:
    """An opportunistic job, which the gate meters anyway."""
    import torch

    torch.set_num_threads(1)
    job = Job.start(job_class="opportunistic")
    on = 0
    end = time.monotonic() + 6  # a guaranteed job has had a window by then
    while time.monotonic() < end:
        train(5)
        on += observed() > 0
    return {"on": on, "windows": job.stats()["samples"]["windows_total"]}


def test_an_opportunistic_job_has_no_windows() -> None:
    assert run_scenario(scenario_opportunistic) == {"on": 0, "windows": 0}
