# SPDX-License-Identifier: Apache-2.0
"""`commensal simulate`: policies on a trace, side by side; wrong input; how it is ended."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from world import COMMENSAL, DEADLINE, wait_until

HEADING = "job,submit,duration,gpus,tenant,class\n"
JOBS = "a,0,100,2,red,guaranteed\nb,1,50,2,blue,guaranteed\nc,2,10,1,blue,opportunistic\n"
POLLUX = Path(__file__).parents[1] / "data" / "pollux" / "pollux.tar.xz"
CLUSTER = ("--nodes", "1", "--gpus-per-node", "2")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADING + JOBS)
    return path


def simulate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMENSAL, "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def results_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {result["policy"]: result for result in json.loads(done.stdout)["results"]}


def test_json_on_stdout_is_all_that_is_there(trace: Path) -> None:
    done = simulate("--trace", trace, *CLUSTER, "--policy", "fifo,srtf", "--json", "-")
    results = results_of(done)
    assert list(results) == ["fifo", "srtf"]
    # fifo: a 100, b until 150, c until 160; srtf: c first at 2, then b, then a.
    assert results["fifo"]["metrics"]["avg_jct"] == pytest.approx((100 + 149 + 158) / 3)
    assert results["srtf"]["metrics"]["preemptions"] > 0
    told = json.loads(done.stdout)
    assert told["trace"]["format"] == "commensal"
    assert told["cluster"]["gpus"] == 2


def test_gpus_are_shared_as_it_is_asked(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(HEADING + "prod,0,101,1,,guaranteed\nsweep,0,1000,1,,opportunistic\n")
    base = (*("--trace", trace, "--nodes", "1", "--gpus-per-node", "1"), "--policy", "antman")

    def of_guaranteed(*arguments: str) -> float:
        result = results_of(simulate(*base, *arguments, "--json", "-"))["antman"]
        assert result["semantics"] == "commensal"
        [metrics] = [g["metrics"] for g in result["classes"] if g["name"] == "guaranteed"]
        return float(metrics["avg_jct"])

    assert of_guaranteed() == pytest.approx(101 * 1.01)
    assert of_guaranteed("--sharing", "gate", "--option", "slo=0.2") == pytest.approx(101 * 1.2)
    assert of_guaranteed("--sharing", "slices") == pytest.approx(202)
    assert of_guaranteed("--sharing", "mps", "--option", "busy=0.75") == pytest.approx(101 * 1.5)


def test_tenants_and_classes_are_told_apart(trace: Path) -> None:
    done = simulate("--trace", trace, *CLUSTER, "--policy", "fifo", "--json", "-")
    result = results_of(done)["fifo"]
    assert {group["name"]: group["metrics"]["jobs"] for group in result["tenants"]} == {
        "red": 1,
        "blue": 2,
    }
    assert [group["name"] for group in result["classes"]] == ["guaranteed", "opportunistic"]


def test_a_table_is_for_people(trace: Path) -> None:
    done = simulate("--trace", trace, *CLUSTER, "--policy", "fifo,fit-first")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "mean JCT" in done.stdout and "fit-first" in done.stdout and "135.67" in done.stdout


def test_jobs_of_several_policies_are_in_one_file(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "jobs.csv"
    done = simulate("--trace", trace, *CLUSTER, "--policy", "fifo,srtf", "--jobs-out", out)
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["job"]) for row in rows] == [
        (policy, job) for policy in ("fifo", "srtf") for job in "abc"
    ]
    assert [row["end"] for row in rows[:3]] == ["100", "150", "160"]
    assert rows[2]["class"] == "opportunistic"


def test_options_reach_the_policy(trace: Path) -> None:
    base = ("--trace", trace, *CLUSTER, "--policy", "las", "--json", "-")
    without = results_of(simulate(*base))["las"]["metrics"]
    given = simulate(*base, "--option", "first-limit=5", "--option", "second-limit=20")
    result = results_of(given)["las"]
    assert result["options"] == {"first-limit": "5", "second-limit": "20"}
    assert result["metrics"]["preemptions"] != without["preemptions"]


def test_the_report_needs_nothing_else(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    done = simulate("--trace", trace, *CLUSTER, "--policy", "fifo,srtf", "--report", out)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "simulation.png"]
    page = (out / "report.html").read_text()
    assert "http://" not in page.split('id="library"')[0].replace("http://www.w3.org", "")
    assert 'src="http' not in page and "{{" not in page.split("<script")[0]
    for text in ("3 jobs on 2 GPUs", "Completion times", "By tenant", "blue", "opportunistic"):
        assert text in page
    assert (out / "simulation.png").read_bytes().startswith(b"\x89PNG")


KEYS = "job,submit,duration,gpus,user,group\n"
RECURRENT = "a,0,10,2,ann,g\nb,10,20,2,ann,g\nc,30,5,2,bob,h\n"


def test_predictions_come_with_their_errors(trace: Path, tmp_path: Path) -> None:
    trace.write_text(KEYS + RECURRENT)
    base = ("--trace", trace, *CLUSTER, "--policy", "sjf", "--predict", "group")
    found = results_of(simulate(*base, "--json", "-"))["sjf"]["prediction"]
    assert (found["predictor"], found["jobs"], found["predicted"]) == ("group", 3, 1)
    assert found["mape_percent"] == found["median_error_percent"] == pytest.approx(50)
    assert found["coverage_percent"] == pytest.approx(100 / 3)
    by_key = {row["key"]: row["mape_percent"] for row in found["by_key"]}
    assert by_key == {"nothing": 100, "group, user": 50, "all jobs": 200}  # a; b; c is given 15
    done = simulate(*base, "--report", tmp_path / "report")
    assert "1 of 3 (33 %)" in done.stdout and "mean error" in done.stdout
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<h2>Predictions</h2>" in page and "group, user" in page


def test_without_predictions_nothing_is_said_of_them(trace: Path, tmp_path: Path) -> None:
    base = ("--trace", trace, *CLUSTER, "--policy", "sjf")
    assert "prediction" not in results_of(simulate(*base, "--json", "-"))["sjf"]
    assert "mean error" not in simulate(*base, "--report", tmp_path / "report").stdout
    assert "<h2>Predictions</h2>" not in (tmp_path / "report" / "report.html").read_text()


def test_qssf_goes_by_its_own_estimate_unless_told_otherwise(trace: Path) -> None:
    base = ("--trace", trace, *CLUSTER, "--policy", "qssf", "--json", "-")
    assert results_of(simulate(*base))["qssf"]["prediction"]["predictor"] == "qssf"
    told = results_of(simulate(*base, "--predict", "truth"))["qssf"]
    assert "prediction" not in told


def test_optimus_reports_how_good_its_fits_are(tmp_path: Path) -> None:
    with tarfile.open(POLLUX) as packed:
        packed.extractall(tmp_path, filter="data")
    whole = (tmp_path / "workloads" / "workload-1.csv").read_text().splitlines(keepends=True)
    some = tmp_path / "workloads" / "some.csv"
    some.write_text("".join(whole[:20]))
    done = simulate(
        *("--trace", some, "--nodes", "16", "--gpus-per-node", "4", "--json", "-"),
        *("--semantics", "pollux", "--policy", "optimus,optimus+oracle"),
    )
    results = results_of(done)
    assert "prediction" not in results["optimus+oracle"]
    found = results["optimus"]["prediction"]
    assert found["predictor"] == "optimus" and found["predicted"] > 100
    rows = {row["key"]: row for row in found["by_key"]}
    assert rows["step time"]["median_error_percent"] < 10
    assert {"ten epochs more", "losses, first quarter", "losses, last quarter"} <= set(rows)


def test_jobs_that_recur_are_made_up(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for file, seed in zip(files, ("1", "1", "2"), strict=True):
        done = simulate(
            *("--generate", "recurrent", "--out", file, "--seed", seed, "--option", "jobs=100")
        )
        assert (done.returncode, done.stdout) == (0, f"{file}: 100 jobs\n"), done.stderr
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    done = simulate(
        *("--trace", files[0], "--nodes", "2", "--gpus-per-node", "8", "--json", "-"),
        *("--policy", "fifo,sjf", "--predict", "group-request"),
    )
    assert results_of(done)["sjf"]["prediction"]["predicted"] > 30


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--generate", "recurrent"], "--out is missing"),
        (["--generate", "recurring", "--out", "x.csv"], "no jobs recurring to generate"),
        (["--out", "x.csv"], "--out goes with --generate"),
        (
            ["--generate", "recurrent", "--out", "x.csv", "--option", "nois=1"],
            "did you mean noise?",
        ),
        (
            ["--generate", "recurrent", "--out", "x.csv", "--option", "recurrence=2"],
            "recurrence is not from 0 to 1: 2",
        ),
    ],
)
def test_jobs_that_cannot_be_made_up_are_refused(arguments: list[str], says: str) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert not Path("x.csv").exists()


def test_policies_are_listed_with_what_they_do() -> None:
    done = simulate("--list-policies")
    assert done.returncode == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {"fifo", "srtf", "2d-las", "2d-gittins"} <= set(lines)
    assert all(lines.values())


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("d,-5,1,1,,\n", ["line 5, column submit", "negative", '"-5"']),
        ("a,5,1,1,,\n", ["line 5, column job", "second job", '"a"']),
        ("d,5,1,3,,\n", ["job d asks for more GPUs than the cluster has: 3 > 2"]),
        ("d,5,soon,1,,\n", ["column duration", '"soon"']),
        ("d,5,1\n", ["line 5"]),
    ],
)
def test_a_bad_row_is_named(trace: Path, tmp_path: Path, rows: str, says: list[str]) -> None:
    trace.write_text(HEADING + JOBS + rows)
    out, told = tmp_path / "jobs.csv", tmp_path / "told.json"
    done = simulate(
        *("--trace", trace, *CLUSTER, "--policy", "fifo,srtf"),
        *("--jobs-out", out, "--json", told, "--report", tmp_path / "report"),
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(trace) in done.stderr
    assert not [text for text in says if text not in done.stderr]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_bad_rows_may_be_counted_instead(trace: Path) -> None:
    trace.write_text(HEADING + JOBS + "d,x,1,1,,\n")
    done = simulate(
        "--trace", trace, *CLUSTER, "--policy", "fifo", "--json", "-", "--skip-bad-rows"
    )
    assert results_of(done)["fifo"]["metrics"]["jobs"] == 3
    assert json.loads(done.stdout)["trace"]["skipped_rows"] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "fifoo"], "no policy 'fifoo'; did you mean fifo?"),
        (["--policy", "fifo", "--format", "phily"], "no format 'phily'; did you mean philly?"),
        (["--policy", "fifo", "--semantics", "tresias"], "did you mean tiresias?"),
        (["--policy", "sjf", "--predict", "groups"], "no predictor 'groups'; did you mean group?"),
        (
            ["--policy", "sjf", "--predict", "group", "--semantics", "fgd"],
            "semantics fgd have no durations to predict",
        ),
        (["--policy", "fifo", "--sharing", "slice"], "did you mean slices?"),
        (["--policy", "fifo", "--sharing", "pairs"], "needs throughputs of models in pairs"),
        (["--policy", "fifo", "--option", "slo=-1"], "option slo is not from 0 to 10: -1"),
        (["--policy", "fifo", "--option", "harvest=no"], "harvest is no number: no"),
        (
            ["--policy", "fifo", "--semantics", "tiresias", "--sharing", "gate"],
            "of semantics commensal",
        ),
        (["--policy", "fifo", "--semantics", "tiresias", "--option", "slo=1"], "no option slo"),
        (["--policy", "las", "--option", "first_limit=1"], "did you mean first-limit?"),
        (["--policy", "las", "--option", "first-limit=soon"], "first-limit is no number: soon"),
        (["--policy", "las", "--option", "five"], "not name=value: five"),
        ([], "--policy is missing"),
        (["--policy", "fifo", "--cluster", "c.json"], "either --cluster, or --nodes"),
        (["--policy", "fifo", "--polcy", "x"], "--polcy"),
    ],
)
def test_a_wrong_option_is_named(trace: Path, arguments: list[str], says: str) -> None:
    done = simulate("--trace", trace, *CLUSTER, *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({"gpu_types": ["v100"], "nodes": [{"gpus": 2, "gpu_type": "v1000"}]}, '"v1000"'),
        ({"nodes": [{"gpus": 2, "speed": 3}]}, "speed"),
        ({"nodes": []}, "no node with a GPU"),
    ],
)
def test_a_bad_cluster_is_named(trace: Path, tmp_path: Path, cluster: object, says: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(cluster))
    done = simulate("--trace", trace, "--cluster", file, "--policy", "fifo")
    assert done.returncode == 2
    assert str(file) in done.stderr and says in done.stderr


def test_a_cluster_file_is_used(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    nodes = [{"count": 2, "gpus": 2, "gpu_type": "t4"}, {"gpus": 1, "gpu_type": "v100"}]
    file.write_text(json.dumps({"gpu_types": ["t4", "v100"], "nodes": nodes}))
    done = simulate("--trace", trace, "--cluster", file, "--policy", "fifo", "--json", "-")
    assert results_of(done)["fifo"]["metrics"]["avg_queue"] == 0
    assert json.loads(done.stdout)["cluster"]["gpu_types"] == {"t4": 4, "v100": 1}


def test_an_empty_trace_and_none_are_named(trace: Path, tmp_path: Path) -> None:
    trace.write_text(HEADING)
    assert "no job in it" in simulate("--trace", trace, *CLUSTER, "--policy", "fifo").stderr
    done = simulate("--trace", tmp_path / "absent.csv", *CLUSTER, "--policy", "fifo")
    assert done.returncode == 2
    assert "absent.csv" in done.stderr


def test_a_file_that_cannot_be_written_is_named(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "absent" / "told.json"
    done = simulate("--trace", trace, *CLUSTER, "--policy", "fifo", "--json", out)
    assert done.returncode == 1
    assert str(out) in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_when_it_is_ended_nothing_is_left(tmp_path: Path, signum: signal.Signals) -> None:
    trace = tmp_path / "long.csv"
    # More jobs than GPUs for a long time: each event looks at many.
    rows = "".join(f"j{i},{i},{90000 + i * 7 % 1000},1,,\n" for i in range(60000))
    trace.write_text(HEADING + rows)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    process = subprocess.Popen(
        [
            *(COMMENSAL, "simulate", "--trace", trace, "--nodes", "1000", "--gpus-per-node", "8"),
            *("--policy", "srtf,srsf", "--jobs-out", tmp_path / "jobs.csv"),
            *("--json", tmp_path / "told.json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )
    children: list[psutil.Process] = []

    def started() -> bool:
        children.clear()
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it only told what there is
                if "--progress" in child.cmdline():
                    children.append(child)
        return bool(children)

    wait_until("the policies run", started)
    process.send_signal(signum)
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signum
    assert out == ""
    assert "nothing was written" in errors
    assert not [child for child in children if child.is_running()]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.csv", "tmp"]
    assert not list(scratch.iterdir())


def test_the_program_says_how_far_it_is(trace: Path) -> None:
    rows = "".join(f"j{i},{i},5,1,,\n" for i in range(1500))
    trace.write_text(HEADING + rows)
    program = Path(sys.executable).with_name("commensal-simulate")
    done = subprocess.run(
        [program, "--trace", trace, *CLUSTER, "--policy", "fifo", "--progress"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    progress = [json.loads(line) for line in done.stderr.splitlines()]
    assert progress
    assert all(line["jobs"] == 1500 for line in progress)
    assert [line["ended"] for line in progress] == sorted(line["ended"] for line in progress)


def test_a_policy_has_a_colour_of_the_page_and_later_ones_are_dashed() -> None:
    from commensal.simulation import plots

    style = (Path(plots.__file__).with_name("page") / "colours.css").read_text()
    series = {"jct": [1.0, 2.0], "time": [0.0, 1.0], "waiting": [0.0, 1.0], "busy_gpus": [1.0, 2.0]}
    results = [{"policy": f"p{i}", "series": series} for i in range(9)]
    drawn = plots.plots_of({"results": results, "cluster": {"gpus": 2}})
    assert {name: [len(plot.traces) for plot in plotted] for name, plotted in drawn.items()} == {
        "jct": [9],
        "queue": [9],
        "use": [9],
    }
    lines = [trace["line"] for trace in drawn["jct"][0].traces]
    assert not [line for line in lines if style.count(f"-{line['color'][1:]}:") != 2]
    assert (lines[0]["dash"], lines[8]["dash"]) == ("solid", "dash")
    assert lines[0]["color"] == lines[8]["color"]


def test_tables_show_metrics_that_only_some_policies_have() -> None:
    from commensal.simulation.tables import compare

    jobs = {"jobs": 2.0, "avg_jct": 1.5, "avg_queue": 0.5, "avg_pending": 0.5}
    results = [
        {"policy": "a", "metrics": jobs},
        {"policy": "b", "metrics": {"jobs": 2.0, "gpu_share": 0.25}},
    ]
    assert compare(results) == [
        ("policy", "jobs", "mean JCT, s", "mean wait, s", "gpu share"),
        ("a", "2", "1.50", "0.50", ""),
        ("b", "2", "", "", "0.25"),
    ]


def test_failures_have_a_table_of_their_own() -> None:
    from commensal.simulation.report import failure_section
    from commensal.simulation.tables import compare, failure_classes, failures

    one = {"name": "user", "failed_attempts": 3, "given_up": 1, "wasted_gpu_seconds": 12.5}
    metrics = {"jobs": 2.0, "given_up": 1.0, "wasted_gpu_seconds": 12.5}
    found = {"options": "user=1", "classes": [one]}
    results = [{"policy": "a", "metrics": metrics, "failures": found}]
    assert compare(results) == [("policy", "jobs"), ("a", "2")]
    heading, row = failures(results)
    assert dict(zip(heading, row, strict=True))["wasted, GPU s"] == "12.50"
    assert failure_classes(results)[1] == ("user", "a", "3", "1", "12.50")
    assert "--failures user=1." in failure_section(results)
    plain = [{"policy": "a", "metrics": {"jobs": 2.0}}]
    assert not failures(plain)
    assert not failure_section(plain)


def test_jobs_fail_only_where_that_is_asked_for(trace: Path) -> None:
    words = ("--trace", trace, *CLUSTER, "--policy", "fifo", "--json", "-")
    plain = results_of(simulate(*words))["fifo"]
    assert "failures" not in plain
    nothing = "user=0,semantic=0,gpu-hours=0,corrupt=0"
    same = results_of(simulate(*words, "--failures", nothing))["fifo"]
    assert same["metrics"].items() >= plain["metrics"].items()
    assert same["metrics"]["wasted_gpu_seconds"] == 0
    early = "user=1,user-seconds=3,user-spread=0,retries=1,back-off=10"
    failing = results_of(simulate(*words, "--failures", early))["fifo"]
    # 3 s of 2, 2 and 1 GPUs, twice.
    assert failing["metrics"]["wasted_gpu_seconds"] == 30
    assert failing["metrics"]["given_up"] == 3
    classes = {one["name"]: one for one in failing["failures"]["classes"]}
    assert classes["user"]["failed_attempts"] == 6


def test_words_about_failures_that_mean_nothing_are_named(trace: Path) -> None:
    words = ("--trace", trace, *CLUSTER, "--policy", "fifo")
    done = simulate(*words, "--failures", "retryy=all")
    assert done.returncode == 2
    assert "no option retryy; did you mean retry?" in done.stderr
    done = simulate(*words, "--semantics", "fgd", "--failures", "on")
    assert done.returncode == 2
    assert "semantics fgd have no ends of jobs" in done.stderr


def test_quotas_of_the_cluster_file_hold(trace: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    tenants = [{"name": "red", "quota": 2}, {"name": "blue", "quota": 2}]
    cluster.write_text(json.dumps({"nodes": [{"gpus": 4}], "tenants": tenants}))
    words = ("--trace", trace, "--cluster", cluster, "--policy", "fifo")
    results = results_of(simulate(*words, "--json", "-"))
    # c has a GPU to itself, but is blue: fifo knows no classes, and b has blue's quota.
    assert results["fifo"]["metrics"]["avg_queue"] == pytest.approx(49 / 3)
    cluster.write_text(json.dumps({"nodes": [{"gpus": 4}], "tenants": tenants[:1]}))
    done = simulate(*words)
    assert done.returncode == 2
    assert "job b is of a tenant that the cluster does not have: blue" in done.stderr


def test_durations_are_in_words_and_axes_have_a_few_marks() -> None:
    from commensal.simulation.durations import DAYS, HOURS, MINUTES, SECONDS, marks, unit_of, words

    said = {0.25: "0.25 s", 59.0: "59 s", 3600.0: "1 h", 3661.0: "1 h 1 min", 190000.0: "2 d 5 h"}
    assert {seconds: words(seconds) for seconds in said} == said
    assert [unit_of(seconds) for seconds in (100, 120, 7300)] == [SECONDS, MINUTES, HOURS]
    assert (unit_of(200000), unit_of(200000, DAYS)) == (HOURS, DAYS)
    assert list(marks(30, 5000).values()) == ["1 min", "10 min", "1 h"]
    assert list(marks(1.5, 6).values()) == ["2 s", "5 s"], "narrow: finer ones"
    assert marks(1.1, 1.2) == {}


def test_a_table_of_the_report_has_one_unit_and_marks_the_shortest() -> None:
    from commensal.simulation import report

    results = [
        {"policy": "a", "metrics": {"jobs": 2.0, "avg_jct": 7200.0}, "tenants": [{"name": ""}]},
        {"policy": "b", "metrics": {"jobs": 2.0, "avg_jct": 14400.0}, "tenants": [{"name": ""}]},
    ]
    table = report.html_table(report.compare(results, report.unit_of(7200.0)), report.best(results))
    assert "<th>mean JCT,&nbsp;h</th>" in table
    assert "<td class=best>2.00</td>" in table
    assert "<td>4.00</td>" in table
    assert report.group_section("tenant", results, "tenants", report.unit_of(7200.0)) == ""
    grouped = report.html_table([("t", "p"), ("x", "a"), ("x", "b"), ("y", "a")], grouped=True)
    assert grouped.count("<td>x</td>") == 1
    assert grouped.count("<tr class=begins>") == 2


def test_a_report_of_pods_that_stay_shows_what_was_given_out(tmp_path: Path) -> None:
    from commensal.simulation import plots, report

    metrics = {"jobs": 3.0, "jobs_placed": 2.0, "gpu_allocation_ratio": 95.2}
    metrics |= {f"gpu_allocation_ratio_at_demand_{d}pct": d * 0.9 for d in (100, 20, 110)}
    result = {"policy": "fgd", "semantics": "fgd", "options": {}, "metrics": metrics}
    answer = {
        "trace": {"file": "pods.csv", "format": "openb", "jobs": 3, "skipped_rows": 0},
        "cluster": {"nodes": 1, "gpus": 8, "gpu_types": {"T4": 8}},
        "results": [result | {"tenants": [], "classes": []}],
    }
    [plot] = plots.plots_of(answer)["allocation"]
    assert plot.traces[0]["x"] == [20.0, 100.0, 110.0]
    page = report.write(tmp_path, answer).read_text()
    assert "What was given out" in page and "Completion times" not in page
    heads = page.split("<thead>")[1].split("</thead>")[0].replace("</th></tr>", "").split("</th>")
    assert [head.split(">")[-1] for head in heads] == [
        *("policy", "jobs", "placed", "GPUs given out,&nbsp;%", "at 20 %", "at 100 %", "at 110 %"),
    ]
