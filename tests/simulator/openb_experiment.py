# SPDX-License-Identifier: Apache-2.0
"""How many GPUs sharing frees: openb-2023 with LS pods guaranteed and BE pods opportunistic.

    python tests/simulator/openb_experiment.py

Writes results/simulator_openb.json and images/simulator_openb.png below --out (docs), and prints
the tables of results/simulator_openb.md. 6,203 pods with GPUs of an Alibaba cluster, at the times
at which they ran there, on clusters of 8-GPU nodes (one of them smaller) that become smaller and
smaller, `antman`, semantics `commensal`: all pods guaranteed, LS pods guaranteed with BE pods
beside them, and LS pods alone.
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiment import DATA, given, markdown, run_all, write_json
from matplotlib.figure import Figure

__all__ = ["SETTINGS", "main", "tables"]

PODS = "openb_pod_list_default.csv"
COLUMNS = ("job", "submit", "duration", "gpus", "gpu_milli", "class", "tenant", "busy")
GUARANTEED = ("LS", "Guaranteed")
BUSY = 0.6  # of a pod that asks for whole GPUs; one that asks for a part is busy as long as that
SETTINGS = {
    "all guaranteed": "#334e68",
    "BE opportunistic": "#0f8b8d",
    "LS alone": "#d99a0b",
}
GPUS = range(49, 73)
ON_A_NODE = 8
SHOWN = {72, 71, 69, 68, 66, 64, 60, 56, 52, 50, 49}  # in the table
LATE = 60.0  # seconds: how long pods that are guaranteed may wait, in the mean


def pods() -> list[dict[str, str]]:
    """Read the pods that ask for GPUs; one that never started would have run no time."""
    with tarfile.open(DATA / "openb" / "openb.tar.xz") as packed:
        file = packed.extractfile(PODS)
        assert file is not None
        rows = list(csv.DictReader(file.read().decode().splitlines()))
    return [row for row in rows if int(row["num_gpu"]) > 0 and row["scheduled_time"]]


def write_trace(file: Path, rows: Sequence[dict[str, str]], setting: str) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(COLUMNS)
        for row in rows:
            latency_sensitive = row["qos"] in GUARANTEED
            if setting == "LS alone" and not latency_sensitive:
                continue
            plain = setting == "all guaranteed" or latency_sensitive
            part = int(row["gpu_milli"])
            writer.writerow(
                (
                    row["name"],
                    row["creation_time"],
                    float(row["deletion_time"]) - float(row["scheduled_time"]),
                    row["num_gpu"],
                    part,
                    "guaranteed" if plain else "opportunistic",
                    "LS" if latency_sensitive else "BE",
                    part / 1000 if part < 1000 else BUSY,
                )
            )


def measure(program: Path, small: bool) -> dict[str, Any]:
    """Run all settings on all clusters."""
    rows = pods()[: 400 if small else None]
    sizes = GPUS[-2:] if small else GPUS
    with tempfile.TemporaryDirectory(prefix="openb-") as name:
        traces = {s: Path(name) / f"{i}.csv" for i, s in enumerate(SETTINGS)}
        for setting, trace in traces.items():
            write_trace(trace, rows, setting)
        clusters = {gpus: Path(name) / f"{gpus}.json" for gpus in sizes}
        for gpus, cluster in clusters.items():
            whole, rest = divmod(gpus, ON_A_NODE)
            nodes = [{"count": whole, "gpus": ON_A_NODE}, *([{"gpus": rest}] if rest else [])]
            cluster.write_text(json.dumps({"nodes": nodes}))
        runs = [(setting, gpus) for setting in SETTINGS for gpus in sizes]
        answers = run_all(
            program,
            [
                (
                    *("--trace", str(traces[setting]), "--cluster", str(clusters[gpus])),
                    *("--policy", "antman", "--semantics", "commensal"),
                )
                for setting, gpus in runs
            ],
        )
    return {
        "trace": PODS,
        "pods": len(rows),
        "runs": [
            {"setting": setting, "gpus": gpus, **by_kind(answer)}
            for (setting, gpus), answer in zip(runs, answers, strict=True)
        ],
    }


def by_kind(answer: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return waits and completion times of the LS pods and of the BE pods."""
    return {
        tenant["name"]: {
            metric: tenant["metrics"][metric]
            for metric in ("jobs", "avg_queue", "avg_jct", "p99_jct", "makespan")
        }
        for tenant in answer["tenants"]
    }


def needed(runs: Sequence[dict[str, Any]], setting: str, kinds: Sequence[str]) -> int | None:
    """Return the GPUs of the smallest cluster, from which on up these pods wait no longer."""
    enough = None
    for run in sorted((r for r in runs if r["setting"] == setting), key=lambda r: -int(r["gpus"])):
        if any(run[kind]["avg_queue"] > LATE for kind in kinds):
            break
        enough = int(run["gpus"])
    return enough


def tables(content: dict[str, Any]) -> str:
    """Return the tables of the page."""
    runs = content["runs"]
    of = {(run["setting"], run["gpus"]): run for run in runs}
    rows = []
    for gpus in sorted({run["gpus"] for run in runs} & SHOWN, reverse=True):
        alone, shared, plain = (
            of[setting, gpus] for setting in ("LS alone", "BE opportunistic", "all guaranteed")
        )
        rows.append(
            (
                str(gpus),
                *(f"{run['LS']['avg_queue']:,.0f} s" for run in (alone, shared, plain)),
                *(f"{run['LS']['avg_jct'] / 3600:.2f} h" for run in (alone, shared)),
                *(f"{run['BE']['avg_queue']:,.0f} s" for run in (shared, plain)),
                *(f"{run['BE']['avg_jct'] / 3600:.2f} h" for run in (shared, plain)),
            )
        )
    heading = (
        "GPUs",
        *("LS wait, alone", "with BE beside", "all guaranteed"),
        *("LS completion, alone", "with BE beside"),
        *("BE wait, beside", "all guaranteed", "BE completion, beside", "all guaranteed"),
    )
    short = [
        (setting, str(needed(runs, setting, kinds) or "more than these"))
        for setting, kinds in (
            ("LS alone", ("LS",)),
            ("BE opportunistic", ("LS", "BE")),
            ("all guaranteed", ("LS", "BE")),
        )
    ]
    least = markdown(("pods", f"GPUs for mean waits of at most {LATE:.0f} s"), short)
    return f"{least}\n\n{markdown(heading, rows)}\n"


def draw(file: Path, content: dict[str, Any]) -> None:
    """Draw waits and completion times over the size of the cluster."""
    figure = Figure(figsize=(11, 3.8), dpi=110, layout="constrained")
    guaranteed, others, times = figure.subplots(1, 3)
    for setting, colour in SETTINGS.items():
        runs = sorted(
            (r for r in content["runs"] if r["setting"] == setting), key=lambda r: int(r["gpus"])
        )
        gpus = [run["gpus"] for run in runs]
        style: dict[str, Any] = {
            "color": colour,
            "linewidth": 1.8,
            "marker": "o",
            "markersize": 4,
            "linestyle": "--" if setting == "LS alone" else "-",
            "zorder": 3 if setting == "LS alone" else 2,
        }
        guaranteed.plot(gpus, [run["LS"]["avg_queue"] for run in runs], label=setting, **style)
        if setting == "LS alone":
            continue
        others.plot(gpus, [run["BE"]["avg_queue"] for run in runs], **style)
        times.plot(gpus, [run["BE"]["avg_jct"] / 3600 for run in runs], **style)
    guaranteed.set_title("LS pods wait, seconds (mean)")
    others.set_title("BE pods wait, seconds (mean)")
    times.set_title("BE pods complete in, hours (mean)")
    times.set_yscale("log")
    for axes in (guaranteed, others):
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(-0.3, None)
    for axes in (guaranteed, others, times):
        axes.set(xlabel="GPUs of the cluster")
        axes.grid(visible=True, color="#e4e7eb", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment."""
    options = given(__doc__, argv)
    content = measure(options.program, options.small)
    write_json(options.out / "results" / "simulator_openb.json", content)
    draw(options.out / "images" / "simulator_openb.png", content)
    print(tables(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
