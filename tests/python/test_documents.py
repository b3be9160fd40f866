# SPDX-License-Identifier: Apache-2.0
"""The documents hold: their commands run, their messages, numbers, files and links exist."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from training import TELL, TRAIN
from world import COMMENSAL, DEADLINE, World, read_line

from commensal._memory_map import MemoryMap
from commensal._memory_summary import KIND_NAMES, describe_memory
from commensal._terms import rows as rows_of_terms
from commensal.cli.status import describe_job, describe_machine

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES = [*GUIDES, *sorted(ROOT.glob("docs/*/*.md"))]
STATS, TROUBLE, ENVIRONMENT = (
    ROOT / "docs" / f"{name}.md" for name in ("stats", "troubleshooting", "environment")
)

INDEX = ROOT / "docs" / "design" / "README.md"

# --- commands and examples ------------------------------------------------------------------

NOT_RUN = 9  # blocks that may be left out, each with its reason
SHOWN = {"text", "mermaid", "ini", "cpp", "csv", "json"}  # languages that are not run

# What a reader calls train.py and other.py. Jobs in the background train until they are killed.
STAND_IN = """
import os, time, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(int(os.environ.get("STEPS", "5"))):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"""

# A reader takes longer to type the next command than a job to come up: here it is waited for. And
# a machine that is busy with other things would starve the kernel's idle class.
WAIT = """
import os, sys, time
from pathlib import Path
from commensal._coordinator import Coordinator, Refused, Unreachable
job, end = sys.argv[1], time.monotonic() + 60
coordinator = Coordinator("default", Path(os.environ["COMMENSAL_RUNTIME_DIR"]))
def known():
    try:
        return coordinator.status(job)["jobs"] or not job
    except (Unreachable, Refused):
        return False
while not known() and time.monotonic() < end:
    time.sleep(0.1)
"""
PRELUDE = """
set -em
trap 'kill -KILL $(jobs -p) 2>/dev/null || :; wait || :' EXIT
commensal() {
  case $1 in
    run) shift; set -- run --no-idle-class "$@" ;;
    status | set | pause | resume | top | logs | memory)
      local job=
      case ${2:-} in -*) ;; *) job=${2:-} ;; esac
      [ -z "$(jobs -p)" ] || python -c "$WAIT" "$job" ;;
  esac
  if [ "$BASHPID" != "$$" ]; then STEPS=1000000 exec commensal "$@"; fi
  command commensal "$@"
}
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with what the comment above it says."""

    page: Path
    line: int
    language: str
    text: str
    file: str  # the blocks after it find it under this name
    reason: str  # why it is not run; empty: it is

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    found, above = [], ""
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    for number, line in lines:
        if line.startswith("```"):
            body = []
            for _, inner in lines:
                if inner.startswith("```"):
                    break
                body.append(inner)
            comment = re.fullmatch(r"<!-- (not run|file): (.+) -->", above)
            kind, value = comment.groups() if comment else ("", "")
            found.append(
                Block(
                    page,
                    number,
                    line[3:].strip(),
                    "\n".join(body) + "\n",
                    value if kind == "file" else "",
                    value if kind == "not run" else "",
                )
            )
        if line.strip():
            above = line.strip()
    return found


@pytest.fixture
def folder(world: World) -> Iterator[Path]:
    """A folder as a reader's: the sources, an environment, two scripts of their own."""
    place = world.folder / "docs"
    place.mkdir()
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name != "build":
            (place / entry.name).symlink_to(entry)
    (place / ".venv").symlink_to(sys.prefix)
    for name in ("train.py", "other.py"):
        (place / name).write_text(STAND_IN)
    yield place
    for lock in world.runtime_dir.glob("*.lock"):  # coordinators that were started by hand as well
        with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # ValueError: it has left
            daemon = psutil.Process(int(lock.read_text()))
            if daemon.name() == "commensald":
                daemon.kill()


def run_block(world: World, folder: Path, block: Block) -> None:
    command = [sys.executable, "-c", block.text]
    if block.language == "bash":
        command = ["bash", "-c", PRELUDE + block.text]
    environ = world.environ | {
        "PATH": f"{COMMENSAL.parent}:{os.environ['PATH']}",
        "WAIT": WAIT,
    }
    said = world.folder / "said"
    with said.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        world.processes.append(process)
        try:
            code = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = -1
    assert code == 0, f"{block} ended with {code}:\n{block.text}\n{said.read_text()}"


def is_run(block: Block) -> bool:
    return block.language not in SHOWN and not block.file and not block.reason


@pytest.mark.parametrize("block", [b for p in GUIDES for b in blocks_of(p) if is_run(b)], ids=str)
def test_commands_and_examples_run(world: World, folder: Path, block: Block) -> None:
    for earlier in blocks_of(block.page):
        if earlier.file and earlier.line < block.line:
            (folder / earlier.file).write_text(earlier.text)
    run_block(world, folder, block)


def test_a_command_that_fails_is_found(world: World, folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\ncommensal run --guaranteed -- python absent.py\ntrue\n```\n")
    [block] = blocks_of(page)
    block = Block(ROOT / "page.md", 1, block.language, block.text, "", "")
    with pytest.raises(AssertionError, match="ended with 2"):
        run_block(world, folder, block)


def test_every_block_is_run_or_says_why_not() -> None:
    blocks = [block for page in GUIDES for block in blocks_of(page)]
    unknown = [str(b) for b in blocks if b.language not in SHOWN | {"bash", "python"}]
    assert not unknown
    assert len([block for block in blocks if block.reason]) <= NOT_RUN


def test_the_worked_example_of_a_policy_is_what_is_compiled() -> None:
    [block] = [b for b in blocks_of(ROOT / "docs" / "policies.md") if b.language == "cpp"]
    assert block.text == (ROOT / "tests" / "coordinator" / block.file).read_text()
    assert block.text.count("\n") <= 60


# --- messages ---------------------------------------------------------------------------------


@functools.cache
def sources() -> dict[Path, str]:
    """The product's texts: adjacent string literals joined, spaces made one."""
    files = [ROOT / "scripts" / "setup"]
    for part in ("allocator", "coordinator", "torch_ext", "python"):
        files += [f for f in (ROOT / part).rglob("*") if f.suffix in (".cpp", ".h", ".py")]
    return {file: plain(file.read_text()) for file in files}


def plain(text: str) -> str:
    joined = re.sub(r'(?<!\\)"\s*f?(?<!\\)"', "", text)
    return re.sub(r"\s+", " ", joined.replace('\\"', '"'))


def pieces(message: str) -> list[str]:
    """The parts of a message that are no values."""
    stripped = (part.strip(" ():;,.'\"") for part in message.split("…"))
    return [part for part in stripped if sum(c.isalpha() for c in part) > 2]


def rows(page: Path, *titles: str) -> list[list[str]]:
    """The rows of a page's tables whose first column has one of these titles."""
    found: list[list[str]] = []
    inside = False
    previous = ""
    for line in page.read_text().splitlines():
        if line.startswith("|---"):
            inside = previous.strip("| ").split(" | ")[0] in titles
        elif line.startswith("|") and inside:
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif not line.startswith("|"):
            inside = False
        previous = line
    return found


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def quoted_messages() -> list[str]:
    messages = [m for row in rows(TROUBLE, "message", "reason", "it says") for m in code(row[0])]
    prose = [line for line in TROUBLE.read_text().splitlines() if not line.startswith("|")]
    return messages + [m for line in prose for m in code(line) if "…" in m or m.count(" ") > 4]


def test_each_message_of_the_page_occurs_in_the_sources() -> None:
    messages = quoted_messages()
    assert len(messages) > 100
    unknown = [
        message
        for message in messages
        if not any(all(p in text for p in pieces(message)) for text in sources().values())
    ]
    assert not unknown


def said_by(file: Path) -> list[str]:
    """The longest constant part of each message that a Python file prints or raises."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in ("say", "CommensalError", "ActivationError", "ValueError", "BadParameter"):
            texts = [
                part.value
                for part in ast.walk(node.args[0])
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            found += [max(pieces("…".join(texts)), key=len, default="")]
    return [text for text in found if len(text) > 5]


def test_each_message_of_the_package_is_on_the_page() -> None:
    files = [*(ROOT / "python/commensal").glob("*.py"), *(ROOT / "python/commensal/cli").glob("*")]
    said = {text: file.name for file in files if file.suffix == ".py" for text in said_by(file)}
    assert len(said) > 20
    page = plain(TROUBLE.read_text())
    assert not {text: file for text, file in said.items() if text not in page}


# --- numbers ----------------------------------------------------------------------------------


def fields(value: Any, prefix: str = "") -> set[str]:
    """The names of an object's fields: a.b, and a[].b for those of a list's objects."""
    if isinstance(value, dict):
        return {f for k, v in value.items() for f in fields(v, f"{prefix}.{k}" if prefix else k)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {f for item in value for f in fields(item, f"{prefix}[]")}
    return {prefix}


@dataclass(frozen=True)
class Numbers:
    """What a real job and its coordinator tell."""

    stats: dict[str, Any]
    alive: dict[str, Any]
    ended: dict[str, Any]


@pytest.fixture(scope="module")
def numbers() -> Iterator[Numbers]:
    world = World(Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp")))

    def status() -> dict[str, Any]:
        done = world.commensal("status", "--json")
        assert done.returncode == 0, done.stderr
        reply: dict[str, Any] = json.loads(done.stdout)
        return reply

    script, stop = world.script(TRAIN + TELL), str(world.folder / "stop")
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--guaranteed", "--memory", "64MiB", "--"),
            *(sys.executable, script, "5", stop),
        ],
        COMMENSAL_SAMPLE_OPS="0",  # lists stay empty, whenever a window would come
    )
    read_line(job, "training")
    alive = status()
    Path(stop).touch()
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    yield Numbers(json.loads(out.splitlines()[-1])["stats"], alive, status())
    world.close()


def test_stats_names_each_number_and_no_other(numbers: Numbers) -> None:
    documented = {f for row in rows(STATS, "field") for f in code(row[0])}
    own = {
        f for f in documented if not re.match(r"(coordinator\.|(devices|jobs)\[\]|expected$)", f)
    }
    assert own == fields(numbers.stats)
    seen = {f for reply in (numbers.alive, numbers.ended) for f in fields(reply)}
    of_jobs = {f"jobs[].{name}" for name in own}
    # An ended job has no members, and a job of one process no gang.
    gang = {f for f in documented if f.startswith("jobs[].gang.")}
    assert gang
    assert documented - own - gang == seen - of_jobs - {"schema", "jobs[].members"}


def test_stats_names_what_people_read(numbers: Numbers) -> None:
    page = STATS.read_text()
    header = describe_machine(numbers.ended, None).splitlines()[3].split()
    [record] = numbers.alive["jobs"]
    about_job = [line.split()[0] for line in describe_job(record).splitlines()[1:]]
    summary = describe_memory(numbers.stats, MemoryMap(0, "", ())).split("\n\n")[0].splitlines()[1:]
    about_memory = [line[2:24].strip() for line in summary if "note:" not in line]
    about_memory += KIND_NAMES.values()
    assert "slowdown" in header and "lease" in about_job and "cached" in about_memory
    assert not [name for name in [*header, *about_job, *about_memory] if f"`{name}`" not in page]


def test_environment_names_each_variable() -> None:
    used = set()
    for file in (ROOT / "python/commensal").rglob("*.py"):
        used |= set(re.findall(r"\bCOMMENSAL_[A-Z_]*[A-Z]\b", file.read_text()))
    for file in (ROOT / "coordinator/engines/local").glob("*.cpp"):  # what it sets for ranks
        used |= set(re.findall(r"\"(COMMENSAL_CLUSTER_[A-Z]+)\"", file.read_text()))
    used |= {row.variable for row in rows_of_terms()}
    documented = set(re.findall(r"`(COMMENSAL_[A-Z_]+)`", ENVIRONMENT.read_text()))
    assert documented == used


# --- files and links --------------------------------------------------------------------------


@functools.cache
def tree() -> str:
    """All files and folders of the project, one a line, each after a slash."""
    names = []
    for place, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in {".git", ".venv", "build", "__pycache__"}]
        inner = Path(place).relative_to(ROOT).as_posix()
        names += [f"/{inner}/{name}" for name in files] + [f"/{inner}/{f}/" for f in folders]
    return "\n".join([*names, ""])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_and_links_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = re.compile(r"(\.\./)*[\w./-]+(\.(h|cpp|py|md|cmake|txt|yaml|toml)|/)")
    own = {block.file for guide in GUIDES for block in blocks_of(guide)} | {"train.py", "other.py"}
    names = {name for name in code(text) if named.fullmatch(name) and not name.startswith("/")}
    missing = {
        n for n in names - own if "NAME" not in n and f"/{n.removeprefix('./')}\n" not in tree()
    }
    assert not missing

    def slug(heading: str) -> str:
        return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-")

    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


# --- folders and design notes ---------------------------------------------------------------


def test_the_table_of_folders_names_every_folder_with_sources() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("## Folders", 1)[1].split("\n## ", 1)[0]
    named = {
        folder
        for row in re.findall(r"^\| (`.*?) \|", table, re.M)
        for folder in re.findall(r"`([^`]+)`", row)
    }
    assert {folder for folder in named if not (ROOT / folder).is_dir()} == set()
    sources = [
        file.relative_to(ROOT).parent
        for top in ("allocator", "torch_ext", "coordinator", "python", "examples", "tests")
        for file in (ROOT / top).rglob("*")
        if file.suffix in {".h", ".cpp", ".cu", ".py"}
    ]
    # Of the tests the first folder is enough: they mirror the rest.
    folders = {Path(*f.parts[:2]) if f.parts[0] == "tests" else f for f in sources}
    assert {str(folder) for folder in folders} - named == {"tests"}


@pytest.mark.parametrize("note", sorted(ROOT.glob("docs/design/0*.md")), ids=lambda n: n.stem)
def test_a_design_note_has_its_date_and_its_status(note: Path) -> None:
    title, _, status, *_ = note.read_text().splitlines()
    assert title.startswith(f"# {note.name[:3]}: ")
    assert re.fullmatch(
        r"Date: 20\d\d-\d\d-\d\d\. Status: (accepted|superseded by \[\d{3}\]\(.+\)).*\.", status
    )
    if "superseded" in status:
        assert "superseded" in re.findall(rf"^- \[{note.name[:3]}: .*$", INDEX.read_text(), re.M)[0]


# --- results ----------------------------------------------------------------------------------

MOST_RAW_BYTES = 300 << 10  # JSON in docs/results, all together


def test_raw_results_are_few_and_each_is_named_by_a_page() -> None:
    results = ROOT / "docs" / "results"
    raw = [*results.glob("*.json"), *results.glob("*.jsonl")]
    assert sum(file.stat().st_size for file in raw) <= MOST_RAW_BYTES
    pages = "".join(page.read_text() for page in results.glob("*.md"))
    assert not [file.name for file in raw if f"({file.name})" not in pages]


def test_the_card_file_has_what_the_probes_measured() -> None:
    cards = ROOT / "tests" / "data" / "cards"
    card = json.loads((cards / "h200.json").read_text())
    probes = {p["id"]: p for p in json.loads((cards / "h200-probes.json").read_text())["probes"]}

    def median(probe: str, figure: str) -> float:
        return float(probes[probe]["figures"][figure]["median"])

    measured = {
        "slice": median("compute-9.2", "slice"),
        "change": median("compute-9.2", "switch_there_and_back") / 2,
        "mark": median("compute-9.4", "cpu_per_write"),
    }
    assert {name: card[name]["value"] for name in measured} == pytest.approx(measured, abs=0.005)
