# SPDX-License-Identifier: Apache-2.0
"""The cluster's page in a real browser, with real jobs.

COMMENSAL_PICTURES=FOLDER writes the pictures of docs/cluster.md there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_submit import ENDED, SHELL, Cluster
from world import COMMENSAL, World, wait_until

pytest.importorskip("selenium", reason="selenium is not installed (scripts/requirements.txt)")
from page_browser import PageBrowser, missing_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_browser()), reason=missing_browser()),
]

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>'
PICTURES = os.environ.get("COMMENSAL_PICTURES")


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


@pytest.fixture
def browser(world: World) -> Iterator[PageBrowser]:
    made = PageBrowser(world.folder)
    yield made
    made.close()


def address(cluster: Cluster) -> str:
    """What `commensal page` prints: with the token."""
    done = cluster.world.commensal("page")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def without_token(cluster: Cluster) -> str:
    return address(cluster).split("#", maxsplit=1)[0]


def wait_for_file(file: Path) -> list[str]:
    return [*SHELL, f"while [ ! -e {file} ]; do sleep 0.05; done"]


def training(cluster: Cluster, name: str, stop: Path) -> list[str]:
    """A job that trains under commensal until a file is there."""
    script = cluster.world.script(
        f"""
import os, time, torch, commensal
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
while not os.path.exists({str(stop)!r}):
    optimizer.zero_grad()
    model(torch.randn(64, 512)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
""",
        name=f"{name}.py",
    )
    return ["--name", name, "--", sys.executable, script]


def test_a_live_run_shows_up(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start("--devices", "2", "--commensal", str(COMMENSAL))
    stop = cluster.world.folder / "stop"
    browser.open(without_token(cluster))
    assert browser.rows("#queue") == []
    cluster.world.commensal("quota", "set", "vision", "1")
    runs = cluster.submit("--tenant", "vision", "--guaranteed", *training(cluster, "resnet", stop))
    waits = cluster.submit(
        "--tenant", "vision", "--guaranteed", "--name", "eval", "--", *SHELL, "true"
    )

    browser.wait("it runs", lambda: [r[2] for r in browser.rows("#jobs")] == ["running guaranteed"])
    browser.wait("it waits", lambda: len(browser.rows("#queue")) == 1)
    waiting = browser.rows("#queue")[0]
    assert waiting[0] == f"eval job {waits}"
    assert "1 of 1 in use, it asks for 1" in waiting[4]
    tenants = {row[0]: row for row in browser.rows("#tenants")}
    assert tenants["vision"][1:4] == ["1 device of 1", "0", "1"]
    assert browser.text("#tiles li:nth-child(3)").startswith("1")

    # What the node's coordinator knows of the job: its memory by tier, its steps, its gate.
    browser.wait("has memory", lambda: "iB of" in browser.rows("#jobs")[0][8])
    browser.wait("has made steps", lambda: "ms each" in browser.rows("#jobs")[0][5])
    assert browser.rows("#jobs")[0][9] == "open"
    browser.wait("is in the chart", lambda: "resnet: " in browser.text("#memory-text"))
    assert "held" in browser.text("#device-list li:first-child")
    assert "1 guaranteed" in browser.text("#load-text")

    stop.touch()
    cluster.wait(runs, "finished")
    cluster.wait(waits, "finished")
    browser.wait("shows the ends", lambda: {r[2] for r in browser.rows("#jobs")} == {"finished"})
    events = [row[2] for row in browser.rows("#events")]
    assert "running → finished" in events
    assert browser.complaints() == []


def test_a_button_cancels_with_the_token_only(cluster: Cluster, browser: PageBrowser) -> None:
    job = cluster.submit("--", *SHELL, "while :; do sleep 1; done")
    cluster.wait(job, "running")
    browser.open(without_token(cluster))

    def press_cancel() -> None:
        browser.wait("has a button", lambda: browser.find("#jobs tbody button").is_displayed())
        browser.find("#jobs tbody button").click()
        assert browser.text("#ask-title").startswith(f"Cancel job {job}")
        browser.find("#ask-yes").click()

    press_cancel()
    browser.wait("is refused", lambda: "needs the page's token" in browser.text("#said"))
    assert cluster.job(job)["state"] == "running"
    assert not cluster.job(job)["cancelling"]

    browser.open(address(cluster))
    assert "token" not in browser.driver.current_url, "it does not stay in the address"
    press_cancel()
    browser.wait("is cancelled", lambda: "cancelled" in browser.text("#jobs tbody"))
    assert cluster.wait(job, *ENDED)["state"] == "cancelled"


def test_a_wrong_quota_is_told_where_it_was_typed(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.open(address(cluster))
    browser.wait("has a button", lambda: browser.find("#tenants tbody button").is_displayed())
    browser.find("#tenants tbody button").click()

    def set_it(value: str) -> None:
        browser.run("document.getElementById('ask-value').value = arguments[0]", value)
        browser.find("#ask-yes").click()

    set_it("lots")
    assert browser.text("#ask-problem").endswith('from 0 to 1000000, or none, not "lots".')
    assert browser.find("#ask").is_displayed(), "it may be typed again"
    set_it("5000000")
    browser.wait("is refused", lambda: "from 0 to 1000000: 5000000" in browser.text("#said"))
    assert not browser.find("#ask").is_displayed()
    assert "of any number" in browser.text("#tenants tbody")


# What a coordinator might say of a parked job, of its minima, and of a gang on two devices.
SHOWN = """
state.nodes = [{name: "n1", state: "up", reason: "", cores: 4, memory_mib: 64, devices: [
  {id: "GPU-0", type: "A100", memory_bytes: 85899345920, jobs: [{id: "2", class: "opportunistic"}]},
  {id: "GPU-1", type: "A100", memory_bytes: null, jobs: []}]}];
const base = {tenant: "t", reason: "r", gpus: 1, changed_ms: 0, submitted_ms: 0, placement: [],
  attempt: 1, asked: "auto", cancelling: false};
state.jobs = [
  {...base, id: "2", name: "gang", state: "running", class: "opportunistic", gpus: 2,
   share: {min: 0.25}, memory: {min_bytes: 4294967296},
   placement: [{node: "n1", device: 0}, {node: "n1", device: 1}]},
  {...base, id: "77", name: "flat", state: "parked", reason: "its loss has been flat"}];
const lease = (device, gib) => ({device, held_bytes: gib * 2 ** 30});
state.node = {name: "n1", status: {devices: [{id: "GPU-1", capacity_bytes: 8 * 2 ** 30,
  held_bytes: 2 ** 31, granted_bytes: 2 ** 31}], jobs: [{
  job: {id: "job-2.1", name: "gang", class: "opportunistic"}, devices: ["GPU-0", "GPU-1"],
  leases: [lease("GPU-0", 3), lease("GPU-1", 2)],
  memory: {device_bytes: 5 * 2 ** 30, limit_bytes: null}}]}};
draw();
const text = (selector) => [...document.querySelectorAll(selector)].map((e) => e.innerText);
const seen = {rows: text("#jobs tbody tr"), devices: text("#device-list li"),
  width: document.querySelector("#device-list li:nth-child(2) .opportunistic").style.width};
document.querySelector("#jobs [aria-label='Resume job 77']").click();
return seen;
"""


def test_parked_jobs_minima_and_further_devices(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.open(address(cluster))
    seen = browser.run(SHOWN)
    gang, parked = seen["rows"]
    assert "at least 25 % of the time and 4.0 GiB of each" in gang
    assert "by device: 3.0 GiB, 2.0 GiB" in gang
    assert "its loss has been flat" in parked
    assert "80.0 GiB of memory" in seen["devices"][0]
    assert "2.0 GiB held" in seen["devices"][1]
    assert seen["width"] == "25%", "2 GiB of 8, not what it holds elsewhere"
    browser.wait("is refused", lambda: 'unknown job "77"' in browser.text("#said"))


# What nodes report: one of the engine's, one that only reports and has fallen silent, with names
# that somebody chose, and one of which there is no room for more than its line.
REPORTED = """
const device = (id, gib) => ({id, name: "H100", type: "gpu", capacity_bytes: 8 * 2 ** 30,
  held_bytes: gib * 2 ** 30, granted_bytes: 4 * 2 ** 30, outside_bytes: 2 ** 31, use: {}});
const job = (id, name, kind) => ({job: {id, name, class: kind}, devices: ["GPU-0"], paused: false,
  memory: {device_bytes: 2 ** 31, host_bytes: 2 ** 30, parked_bytes: null, limit_bytes: 2 ** 32},
  lease: {device: "", held_bytes: 2 ** 31}, leases: [], step: {number: 12, median_seconds: 0.01},
  share: {now: 0.5}, gate: {law: "gap", state: "open"}, slowdown: null, ended: false});
state.nodes = [{name: "n2", state: "up", reason: "", cores: 4, memory_mib: 64,
  devices: [{id: "GPU-0", type: "H100", memory_bytes: null,
    jobs: [{id: "5", class: "opportunistic"}]}]}];
state.jobs = [{id: "5", name: "sweep", tenant: "t", reason: "r", gpus: 1, changed_ms: 0,
  submitted_ms: 0, placement: [{node: "n2", device: 0}], attempt: 1, asked: "auto",
  cancelling: false, state: "running", class: "opportunistic"}];
const node = (name, state, silent_seconds, status) => ({name, state, silent_seconds, cores: 8,
  memory_mib: 64, device_count: 1, job_count: 1, status});
state.node = {name: "elsewhere", status: null, problem: "none"};
state.reports = {left_out: 7, nodes: [
  node("n2", "up", 0, {devices: [device("GPU-0", 2)],
    jobs: [job("job-5.1", "sweep", "opportunistic")]}),
  node(arguments[0], "silent", 12, {devices: [{...device("GPU-0", 3), name: arguments[0]}],
    jobs: [job("own", arguments[0], "guaranteed")]}),
  node("n9", "up", 0, null)]};
draw();
const text = (selector) => [...document.querySelectorAll(selector)].map((e) => e.innerText);
return {devices: text("#device-list li"), nodes: text("#nodes tbody tr"),
  job: text("#jobs tbody td"),
  note: document.getElementById("nodes-note").innerText,
  stale: [...document.querySelectorAll("#device-list .stale")].length,
  buttons: document.querySelectorAll("#nodes tbody button").length,
  memory: document.getElementById("memory-text").textContent,
  bar: document.querySelector("#device-list li .opportunistic").style.width};
"""


def test_memory_and_gates_of_nodes_that_report(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.open(address(cluster))
    seen = browser.run(REPORTED, HOSTILE)
    first, silent = seen["devices"]
    assert "n2:0 H100" in first
    assert "2.0 GiB held, 4.0 GiB granted of 8.0 GiB" in first
    assert seen["bar"] == "25%"
    assert any("2.0 GiB of 4.0 GiB" in cell and "slower or parked" in cell for cell in seen["job"])
    assert any("gap, share 0.50" in cell for cell in seen["job"])
    assert silent.count(HOSTILE) >= 3, "node, device and job, as text"
    assert "node silent for 12 s" in silent
    assert "gate open" in silent
    assert seen["stale"] == 1
    assert seen["buttons"] == 1, "nothing is started on nodes that only report"
    assert any("silent for 12 s" in row for row in seen["nodes"])
    assert any("n9" in row and "the engine starts nothing there" in row for row in seen["nodes"])
    assert seen["note"].startswith("7 more nodes report")
    assert f"{HOSTILE}: 2.0 GiB on the device" in seen["memory"]
    assert browser.driver.title == "commensal cluster"
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
    assert browser.complaints() == []


# A job of which the node says that its slowdown is no figure yet, and since when it runs.
DOUBTED = """
const told = (reason) => ({job: {id: "job-5.1", name: "prod", class: "guaranteed"},
  devices: ["host"], slowdown: reason ? null : 0.012, slowdown_error: reason ? null : 0.004,
  slowdown_reason: reason, step: {number: 12, median_seconds: 0.01}, ended: false, memory: {}});
state.nodes = [{name: "n1", state: "up", reason: "", cores: 4, memory_mib: 64, devices: []}];
state.jobs = [{id: "5", name: "prod", tenant: "t", reason: "r", gpus: 1,
  changed_ms: Date.now() - arguments[1], submitted_ms: 0, placement: [{node: "n1", device: 0}],
  attempt: 1, asked: "guaranteed", cancelling: false, state: "running", class: "guaranteed"}];
state.reports = {left_out: 0, nodes: []};
state.node = {name: "n1", status: {devices: [], jobs: [told(arguments[0])]}};
draw();
const cells = document.querySelector("#jobs tbody tr").cells;
const figure = cells[6].querySelector("span"), since = cells[3].querySelector("span");
return {shown: cells[6].innerText, title: figure.title, since: since.textContent,
  lines: since.getClientRects().length,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth};
"""


def test_a_slowdown_that_is_no_figure_is_not_known(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.screen(1280, 800)
    browser.open(without_token(cluster))
    reason = "not known yet: 526.0 % from 3 steps, with a standard error of 885.0 %"
    for told, shown in ((reason, "not known"), ("", "1.2 % ± 0.4 %"), ("", "1.2 % ± 0.4 %")):
        seen = browser.run(DOUBTED, told, 0)
        assert " ".join(seen["shown"].split()) == shown
        assert seen["title"] == told
    assert browser.complaints() == []


def test_since_when_a_job_runs_is_on_one_line(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.open(without_token(cluster))
    for width in (1280, 1024, 901):
        browser.screen(width, 800)
        for ms, text in ((61_000, "1 min"), (85_000_000, "23 h 36 min"), (10**9, "11 d 13 h")):
            shown = lambda ms=ms: browser.run(DOUBTED, "", ms)  # noqa: E731
            # The charts take the new width a moment later.
            browser.wait(f"{text} fits at {width}", lambda shown=shown: shown()["wide"] == 0)
            assert (shown()["since"], shown()["lines"]) == (text, 1), width


def test_two_node_coordinators_one_of_which_reports(cluster: Cluster, browser: PageBrowser) -> None:
    world = cluster.world
    keys = world.folder / "keys"
    daemon = str(COMMENSAL.parent / "commensald")

    def key(*words: str) -> str:
        done = world.commensal("keys", *words, COMMENSAL_KEYS_DIR=str(keys))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    folders = {name: world.folder / name for name in ("n1", "n2")}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    nodes = [word for name in folders for word in ("--node", f"{name}={folders[name]}")]
    network = ("--listen", "tcp://127.0.0.1:0", "--keys-dir", str(keys))
    try:
        cluster.start("--commensal", str(COMMENSAL), *nodes, *network)
        told = json.loads(world.commensal("nodes", "--json").stdout)["coordinator"]
        key("allow", "n2", key("create", "node"), "--role", "node")
        reports = ("--coordinator", told["address"], "--keys-dir", str(keys))
        for name, options in (("n1", ()), ("n2", reports)):
            command = [daemon, "--runtime-dir", str(folders[name]), "--idle-exit", "0", *options]
            done = world.run(command)
            assert done.returncode == 0, done.stderr
        assert world.commensal("drain", "n1").returncode == 0
        stop = world.folder / "stop"
        browser.open(without_token(cluster))
        job = cluster.submit("--opportunistic", *training(cluster, "sweep", stop))
        browser.wait("runs", lambda: "n2:0" in browser.text("#jobs tbody"))
        browser.wait("has memory by tier", lambda: "iB" in browser.rows("#jobs")[0][8])
        browser.wait("has a gate", lambda: "share" in browser.rows("#jobs")[0][9])
        browser.wait("has made steps", lambda: "ms each" in browser.rows("#jobs")[0][5])
        browser.wait("has a bar", lambda: "held" in browser.text("#device-list li:nth-child(2)"))
        assert "sweep: " in browser.text("#memory-text")
        table = world.commensal("nodes").stdout
        assert " GiB" in table
        assert max(map(len, table.splitlines())) <= 80
        stop.touch()
        cluster.wait(job, "finished")
        assert browser.complaints() == []
    finally:
        for folder in folders.values():
            with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                psutil.Process(int((folder / "default.lock").read_text())).kill()


def test_what_users_wrote_stays_text(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    node = json.loads(cluster.world.commensal("nodes", "--json").stdout)["nodes"][0]["name"]
    cluster.world.commensal("quota", "set", HOSTILE, "1")
    cluster.world.commensal("drain", node, "--reason", HOSTILE)
    job = cluster.submit("--name", HOSTILE, "--tenant", HOSTILE, "--", *SHELL, "true")
    browser.open(without_token(cluster))
    browser.wait("is queued", lambda: len(browser.rows("#queue")) == 1)
    cluster.world.commensal("cancel", job, "--reason", HOSTILE)
    browser.wait("is gone", lambda: browser.rows("#queue") == [])

    for table in ("#jobs", "#tenants", "#nodes", "#events"):
        browser.wait(f"{table} has it", lambda table=table: HOSTILE in browser.text(table))
    assert browser.driver.title == "commensal cluster"
    assert browser.run("return document.querySelectorAll('main script, main img').length") == 0
    assert browser.complaints() == []


def test_it_survives_a_coordinator_that_was_killed(cluster: Cluster, browser: PageBrowser) -> None:
    go = cluster.world.folder / "go"
    job = cluster.submit("--name", "long", "--", *wait_for_file(go))
    cluster.wait(job, "running")
    browser.open(address(cluster))
    browser.wait("runs", lambda: "running" in browser.text("#jobs tbody"))
    before = cluster.pid()
    os.kill(before, signal.SIGKILL)
    wait_until("is gone", lambda: not psutil.pid_exists(before))
    browser.wait("says so", lambda: "does not answer" in browser.text("#connection"))
    assert "long" in browser.text("#jobs tbody"), "what was known stays"

    cluster.submit("--name", "next", "--", *SHELL, "true")  # starts the next coordinator
    browser.wait_live()
    browser.wait("knows the next job", lambda: "next" in browser.text("#jobs tbody"))
    assert f"pid {cluster.pid()}" in browser.text("#facts")
    go.touch()
    browser.wait("sees its end", lambda: "running" not in browser.text("#jobs tbody"))


def test_it_asks_nobody_else(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.open(address(cluster))
    names = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert {"chart.js", "page.js", "page.css"} <= {name.rsplit("/", 1)[-1] for name in names}
    assert all(name.startswith(without_token(cluster)) for name in names)
    assert browser.complaints() == []


def test_the_keyboard_is_enough(cluster: Cluster, browser: PageBrowser) -> None:
    go = cluster.world.folder / "go"
    job = cluster.submit("--", *wait_for_file(go))
    cluster.wait(job, "running")
    browser.open(address(cluster))
    browser.wait("has a button", lambda: browser.find("#jobs tbody button").is_displayed())
    keys = browser.driver.switch_to.active_element
    seen = []
    for _ in range(40):
        keys.send_keys("\ue004")  # tab
        keys = browser.driver.switch_to.active_element
        seen.append(keys.get_attribute("aria-label") or keys.text or keys.get_attribute("id"))
        outline = browser.run("return getComputedStyle(arguments[0]).outlineStyle", keys)
        assert outline != "none", f"the focus on {seen[-1]} is not to be seen"
        if seen[-1] == f"Cancel job {job}":
            break
    assert seen[0] == "Skip to the jobs"
    assert seen[-1] == f"Cancel job {job}"

    version = int(browser.run("return document.documentElement.dataset.version"))
    cluster.submit("--name", "another", "--", *SHELL, "true")
    browser.wait(
        "draws anew",
        lambda: int(browser.run("return document.documentElement.dataset.version")) > version + 1,
    )
    focused = browser.driver.switch_to.active_element
    assert focused.get_attribute("aria-label") == f"Cancel job {job}", "the focus stays"
    focused.send_keys("\ue007")  # enter
    browser.wait("asks", lambda: browser.text("#ask-title").startswith("Cancel job"))
    browser.driver.switch_to.active_element.send_keys("\ue00c")  # escape: leaves it
    assert not cluster.job(job)["cancelling"]
    go.touch()


def some_minutes(cluster: Cluster) -> None:
    """Have jobs come, wait and go, so that the chart has something to show."""
    for seconds in (9, 14, 6, 11, 17, 8):
        for delay in (0, 3, 5):
            cluster.submit(
                *("--tenant", "language", "--name", "preprocess"),
                *("--", *SHELL, f"sleep {seconds + delay}"),
            )
        time.sleep(seconds)


def test_a_page_that_is_opened_shows_what_was_before(
    cluster: Cluster, browser: PageBrowser
) -> None:
    cluster.start("--devices", "1")
    go = cluster.world.folder / "go"
    job = cluster.submit("--guaranteed", "--", *wait_for_file(go))
    cluster.wait(job, "running")

    def seen() -> list[tuple[int, int]]:
        points = browser.run("return history.map(p => [p.at, p.guaranteed, p.waiting])")
        assert all(a[0] <= b[0] for a, b in itertools.pairwise(points)), "in the order of time"
        return [(point[1], point[2]) for point in points]

    def known() -> int:
        with urllib.request.urlopen(f"{without_token(cluster)}api/v1/load") as answer:
            return len(json.load(answer)["load"])

    wait_until("the coordinator has noted it", lambda: known() >= 2)
    go.touch()
    cluster.wait(job, "finished")
    wait_until("it has noted the end", lambda: known() >= 3)
    browser.open(without_token(cluster))
    assert seen()[-2:] == [(1, 0), (0, 0)], "nobody looked while it ran"
    assert "now: 0 guaranteed" in browser.text("#load-text")
    drawn = browser.run("return charts.load.data.datasets[0].data.map(p => p.y)")
    assert 1 in drawn, "and it is drawn"
    assert browser.complaints() == []


# A job ran from 100 to 50 seconds ago: what is drawn in the middle of the times before and after.
DRAWN = """
const now = Date.now();
const point = (seconds, guaranteed) => ({at: now - 1000 * seconds, guaranteed, opportunistic: 0,
  waiting: 0});
history = [point(150, 0), point(100, 1), point(50, 0)];
drawCharts();
const {ctx, scales, width} = charts.load;
const scale = ctx.canvas.width / width;
const drawn = (seconds) => ctx.getImageData(scale * scales.x.getPixelForValue(-seconds),
  scale * scales.y.getPixelForValue(0.55), 1, 1).data[3] > 0;
return [125, 75, 25].map(drawn);
"""


def test_the_chart_says_when_a_job_ran(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start()
    browser.open(without_token(cluster))
    assert browser.run(DRAWN) == [False, True, False]


def test_it_fits_desk_and_phone_dark_and_light(cluster: Cluster, browser: PageBrowser) -> None:
    cluster.start("--devices", "2", "--commensal", str(COMMENSAL))
    stop = cluster.world.folder / "stop"
    for tenant, quota in (("vision", "1"), ("language", "2")):
        cluster.world.commensal("quota", "set", tenant, quota)
    first = cluster.submit(
        "--tenant", "vision", "--guaranteed", *training(cluster, "resnet-finetune", stop)
    )
    second = cluster.submit(
        "--tenant", "language", "--opportunistic", *training(cluster, "char-transformer", stop)
    )
    cluster.submit(
        *("--tenant", "vision", "--guaranteed", "--name", "evaluation"),
        *("--", *SHELL, "true"),
    )
    cluster.submit(
        "--tenant", "language", "--name", "prepare-data", "--", *SHELL, "sleep 0.2; true"
    )
    for job in (first, second):
        cluster.wait(job, "running")
    if PICTURES:
        some_minutes(cluster)

    for dark, width in itertools.product((False, True), (1280, 360)):
        browser.screen(width, 800, dark=dark)
        browser.open(without_token(cluster))
        browser.wait("has two bars", lambda: "; " in browser.text("#memory-text"))
        browser.wait("has steps", lambda: browser.text("#jobs tbody").count("ms each") == 2)
        sizes = browser.run(
            "const root = document.documentElement;"
            "return [innerWidth, root.scrollWidth - root.clientWidth, "
            "getComputedStyle(document.body).backgroundColor]"
        )
        assert sizes[:2] == [width, 0], "nothing scrolls sideways"
        assert sizes[2] == ("rgb(17, 22, 28)" if dark else "rgb(245, 247, 250)")
        assert all(contrast >= 4.5 for contrast in browser.run(CONTRASTS)), "texts can be read"
        if PICTURES:
            name = f"page_{'phone_' if width < 500 else ''}{'dark' if dark else 'light'}.png"
            browser.picture(Path(PICTURES, name), width, dark=dark)

    long = "a-name-that-is-longer-than-any-screen-of-a-phone-is-wide-" * 3
    cluster.submit("--tenant", "vision", "--guaranteed", "--name", long, "--", *SHELL, "true")
    for dark, width in itertools.product((False, True), (1280, 700, 360)):
        browser.screen(width, 800, dark=dark)
        browser.wait("shows it", lambda: long in browser.text("#queue"))
        assert (
            browser.run(
                "const root = document.documentElement; return root.scrollWidth - root.clientWidth"
            )
            == 0
        )
    assert browser.complaints() == []
    stop.touch()


# The contrast of texts with what is behind them, as WCAG 2 defines it.
CONTRASTS = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = numbers(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
return ["#facts", "#connection", "h1", "h2", "#tiles span", "tbody th", "td small", "button", "a",
  "#queue td:nth-child(5)", ".note"].map((selector) => {
  const e = [...document.querySelectorAll(selector)].find((one) => one.offsetParent);
  const pair = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
  return (pair[0] + 0.05) / (pair[1] + 0.05);
});
"""
