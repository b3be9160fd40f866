// The page of the cluster coordinator. What users wrote (names, reasons) is put into the page as
// text, never as HTML.
"use strict";

const KEEP_MS = 15 * 60 * 1000; // of the history in the chart; the coordinator keeps as much
const PLACED = ["starting", "running", "upgrading"];
const WAITING = ["submitted", "queued", "reserved"];
const MOST_BARS = 12;

const state = {};
let history = [];
const byId = (id) => document.getElementById(id);

// ---- small tools ------------------------------------------------------------------------------

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
const since = (ms) => span((Date.now() - ms) / 1000);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Fills a table or list so that what stays keeps its element, and with it the focus.
function fill(parent, items, key, create, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let element = before.get(name);
    if (!element) {
      element = create(item);
      element.dataset.key = name;
    }
    before.delete(name);
    if (element !== place) parent.insertBefore(element, place);
    place = element.nextElementSibling;
    update(element, item);
  }
  for (const gone of before.values()) gone.remove();
}

// Rows of a table: each cell a text, or {text, small, kind, title}; the first is the row's heading.
function rows(section, items, key, cells, action) {
  const table = section.tagName === "TABLE" ? section : section.querySelector("table");
  const labels = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const create = (item) => {
    const row = make("tr");
    cells(item).forEach((_, column) => {
      const cell = column === 0 ? make("th", { scope: "row" }) : make("td", { "data-label": labels[column] });
      cell.append(make("span"), make("small"));
      row.append(cell);
    });
    if (action) row.append(make("td"));
    return row;
  };
  fill(table.tBodies[0], items, key, create, (row, item) => {
    cells(item).forEach((cell, column) => {
      const { text = "", small = "", kind = "", words = false, title = "" } = typeof cell === "object" ? cell : { text: cell };
      const element = row.cells[column];
      const first = element.querySelector("span:not(.bar)");
      const second = element.querySelector("small");
      put(first, text);
      put(second, small);
      second.hidden = small === "";
      if (first.className !== kind) first.className = kind;
      if (first.title !== title) first.title = title;
      element.classList.toggle("words", words);
      element.classList.toggle("nothing", column > 0 && text === "" && small === "");
    });
    if (action) action(row.cells[row.cells.length - 1], item);
  });
  const empty = table.parentElement.querySelector(".empty");
  if (empty) empty.hidden = items.length > 0;
  table.hidden = items.length === 0 && Boolean(empty);
}

// The button of an action in a cell; without a text there is none.
function button(cell, text, label, act, action = "first") {
  let element = cell.querySelector(`button[data-action="${action}"]`);
  if (!text) {
    if (element) element.remove();
    return;
  }
  if (!element) {
    element = make("button", { type: "button", "data-action": action });
    cell.append(element);
  }
  put(element, text);
  if (element.getAttribute("aria-label") !== label) element.setAttribute("aria-label", label);
  element.onclick = act;
}

// ---- changes ----------------------------------------------------------------------------------

const token = {
  get: () => sessionStorage.getItem("commensal-token") || "",
  set(value) {
    if (value) sessionStorage.setItem("commensal-token", value);
    else sessionStorage.removeItem("commensal-token");
    put(byId("token-note"), value
      ? "There is a token, until this tab is closed."
      : "Changes need the token: open the address that `commensal page` prints, or paste it here.");
  },
};

function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) globalThis.history.replaceState(null, "", location.pathname);
  token.set(given === null ? token.get() : given);
}

function say(text, bad = false) {
  const said = byId("said");
  said.classList.toggle("bad", bad);
  put(said, text);
  if (bad) said.scrollIntoView({ block: "nearest" }); // the button may be far below
}

async function change(request, done) {
  try {
    const headers = { "Content-Type": "application/json" };
    if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
    const answer = await fetch("/api/v1/requests", { method: "POST", headers, body: JSON.stringify(request) });
    const told = await answer.json();
    if (!answer.ok) {
      say(`Not done: ${told.what}`, true);
      if (answer.status === 401) byId("token").focus();
    } else {
      say(done);
    }
  } catch (error) {
    say(`Not done: the coordinator does not answer (${error.message})`, true);
  }
}

// Asks before something is changed; gives the value of its field, or null for "leave it". A value
// that the field's `check` objects to is said there, and may be typed again.
function ask(title, text, yes, field) {
  const problem = byId("ask-problem");
  const check = (event) => {
    const why = event.submitter && event.submitter.value === "yes" && field && field.check
      ? field.check(byId("ask-value").value) : "";
    put(problem, why);
    problem.hidden = !why;
    if (why) event.preventDefault();
  };
  problem.hidden = true;
  byId("ask-form").onsubmit = check;
  const dialog = byId("ask");
  put(byId("ask-title"), title);
  put(byId("ask-text"), text);
  put(byId("ask-yes"), yes);
  byId("ask-field").hidden = !field;
  byId("ask-value").value = field ? field.value : "";
  put(byId("ask-label"), field ? field.label : "");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? byId("ask-value").value : null);
    }, { once: true });
  });
}

async function cancelJob(job) {
  const name = job.name ? `${job.id} (${job.name})` : job.id;
  let ending = "It leaves the queue.";
  if (PLACED.includes(job.state)) ending = "It is asked to end, and killed if it does not.";
  if (job.state === "parked") ending = "It cannot be resumed any more.";
  if (await ask(`Cancel job ${name}?`, ending, "Cancel the job") === null) return;
  await change({ type: "cancel", id: job.id, reason: "cancelled on the page" }, `Job ${name} is being cancelled.`);
}

async function resumeJob(job) {
  await change({ type: "resume", id: job.id, reason: "resumed on the page" }, `Job ${job.id} is queued again.`);
}

async function drainNode(node) {
  const reason = await ask(`Drain ${node.name}?`, "It is given no more jobs; those on it run on.", "Drain it",
    { label: "Reason, for the others", value: "" });
  if (reason === null) return;
  await change({ type: "drain", node: node.name, reason: reason || "drained on the page" }, `${node.name} is drained.`);
}

async function setQuota(tenant) {
  const before = tenant.quota === null ? "none" : String(tenant.quota);
  const text = await ask(`Quota of ${tenant.name}`, "Devices that its guaranteed jobs may have at once.", "Set it",
    { label: "A number, or none", value: before, check: (value) => (/^(none|\d{1,7})$/.test(value.trim()) ? ""
      : `A quota is a number of devices from 0 to 1000000, or none, not "${value.trim()}".`) });
  if (text === null) return;
  const word = text.trim();
  await change({ type: "quota", tenant: tenant.name, quota: word === "none" ? null : Number(word) },
    `The quota of ${tenant.name} is ${word}.`);
}

// ---- what nodes say of their devices and jobs ------------------------------------------------

// By the name of the node: {devices, jobs, silent}. This machine's node is asked, others report.
let told = new Map();

function telling(status, silent) {
  const one = { devices: status.devices || [], jobs: [], silent };
  one.jobs = (status.jobs || []).map((record) => ({ ...record, at: one }));
  return one;
}

function hear() {
  told = new Map();
  for (const node of (state.reports && state.reports.nodes) || []) {
    if (node.status) told.set(node.name, telling(node.status, node.state === "up" ? null : node.silent_seconds));
  }
  const own = state.node;
  if (own && own.status) told.set(own.name, telling(own.status, null)); // it says more than a report
}

const allRecords = () => [...told.values()].flatMap((one) => one.jobs);

function onNode(job) {
  const id = `job-${job.id}.${job.attempt}`;
  for (const place of job.placement || []) {
    const one = told.get(place.node);
    const record = one && one.jobs.find((other) => other.job.id === id);
    if (record) return record;
  }
  return undefined;
}

const deviceOf = (one, id) => one && one.devices.find((device) => device.id === id);

// That what is known of it is old; empty: it is not.
const old = (one) => (one && one.silent !== null ? `node silent for ${span(one.silent)}` : "");

function harvest(record) {
  if (!record || record.job.class !== "opportunistic" || record.ended) return "";
  const device = deviceOf(record.at, (record.devices || ["host"])[0]);
  const use = (device && device.use) || {};
  if (use.opportunistic_share === null || use.opportunistic_share === undefined) return "";
  const beside = record.at.jobs.filter((job) => !job.ended && job.job.class === "opportunistic"
    && (job.devices || ["host"])[0] === device.id);
  return {
    text: `${percent(use.opportunistic_share)} of the device`,
    small: beside.length > 1 ? `with ${beside.length - 1} other${beside.length > 2 ? "s" : ""}` : "",
  };
}

function slowdown(record) {
  if (!record) return "";
  if (record.slowdown === null || record.slowdown === undefined) { // the node says why it is no figure yet
    const why = record.ended ? "" : record.slowdown_reason;
    return why ? { text: "not known", title: why } : "";
  }
  const error = record.slowdown_error;
  return { text: percent(record.slowdown, 1), small: error ? `± ${percent(error, 1)}` : "" };
}

function steps(record) {
  if (!record || !record.step || !record.step.number) return "";
  const median = record.step.median_seconds;
  return { text: String(record.step.number), small: median ? `${(1000 * median).toFixed(1)} ms each` : "" };
}

// What a job holds on each of its devices, where it has several.
function leaseOn(record, id) {
  const devices = record.devices || ["host"];
  const several = record.leases || [];
  if (several.length > 0) return several.find((lease) => lease.device === id);
  return devices[0] === id ? record.lease : undefined;
}

function memory(record) {
  const has = record && !record.ended && record.memory;
  if (!has || has.device_bytes === undefined || has.device_bytes === null) return "";
  const slower = (has.host_bytes || 0) + (has.parked_bytes || 0);
  const limit = has.limit_bytes === null || has.limit_bytes === undefined ? "" : `of ${bytes(has.limit_bytes)}`;
  const notes = slower ? [`${bytes(slower)} slower or parked`] : [];
  const several = record.leases || [];
  if (several.length > 1) notes.push(`by device: ${several.map((lease) => bytes(lease.held_bytes || 0)).join(", ")}`);
  if (old(record.at)) notes.push(old(record.at));
  return { text: `${bytes(has.device_bytes)} ${limit}`, small: notes.join("; ") };
}

function gate(record) {
  if (!record || record.ended || !record.gate || !record.gate.law) return "";
  if (record.job.class === "guaranteed") return { text: "open", small: old(record.at) };
  const share = record.share && record.share.now;
  return {
    text: record.paused ? "paused" : record.gate.state || "",
    small: [record.gate.law, share === null || share === undefined ? "" : `share ${share.toFixed(2)}`, old(record.at)]
      .filter(Boolean).join(", "),
  };
}

// ---- drawing ----------------------------------------------------------------------------------

function stateCell(job) {
  const notes = [];
  if (job.class) notes.push(job.class);
  if (job.cancelling) notes.push("is being ended");
  if (job.state === "failed" && job.exit_code !== undefined) notes.push(`exit code ${job.exit_code}`);
  if (job.state === "parked") notes.push(job.reason);
  return {
    text: job.state,
    small: notes.join(", "),
    kind: `state ${PLACED.includes(job.state) ? job.class : job.state}`,
    words: job.state === "parked",
  };
}

const jobCell = (job) => ({ text: job.name || `job ${job.id}`, small: `job ${job.id}` });

const places = (job) => job.placement
  .map((place) => (place.device < 0 ? place.node : `${place.node}:${place.device}`)).join(", ");

// The minima that count where a job is put.
function minima(job) {
  const least = [];
  if (job.share && job.share.min > 0) least.push(`${percent(job.share.min)} of the time`);
  if (job.memory && job.memory.min_bytes > 0) least.push(bytes(job.memory.min_bytes));
  return least.length === 0 ? "" : `at least ${least.join(" and ")}${job.gpus === 1 ? "" : " of each"}`;
}

function estimate(job) {
  if (!job.estimate) return "";
  return job.estimate.starts_in_ms === null ? job.estimate.words : `starts ${job.estimate.words}`;
}

function drawJobs() {
  const jobs = state.jobs || [];
  const shown = jobs.filter((job) => PLACED.includes(job.state) || job.state === "parked");
  shown.push(...jobs.filter((job) => !shown.includes(job) && !WAITING.includes(job.state)).slice(0, 15));
  rows(byId("jobs"), shown, (job) => job.id, (job) => {
    const record = onNode(job);
    const placed = PLACED.includes(job.state);
    return [jobCell(job), job.tenant, stateCell(job), { text: since(job.changed_ms), kind: "short" },
      placed ? { text: places(job), small: minima(job) } : "",
      steps(record), slowdown(record), harvest(record), memory(record), gate(record)];
  }, (cell, job) => {
    const parked = job.state === "parked";
    const may = (PLACED.includes(job.state) && !job.cancelling) || parked;
    button(cell, may ? "Cancel" : "", `Cancel job ${job.id}`, () => cancelJob(job));
    button(cell, parked ? "Resume" : "", `Resume job ${job.id}`, () => resumeJob(job), "second");
  });
  const waiting = jobs.filter((job) => WAITING.includes(job.state));
  rows(byId("queue"), waiting, (job) => job.id, (job) => [jobCell(job), job.tenant,
    { text: `${job.gpus} device${job.gpus === 1 ? "" : "s"}, ${job.asked}`, small: minima(job) }, { text: since(job.submitted_ms), kind: "short" }, { text: job.reason, small: estimate(job), words: true }],
  (cell, job) => button(cell, "Cancel", `Cancel job ${job.id}`, () => cancelJob(job)));
}

function drawTenants() {
  const section = byId("tenants");
  rows(section, state.tenants || [], (tenant) => tenant.name, (tenant) => [
    { text: tenant.name },
    `${tenant.guaranteed_devices} device${tenant.guaranteed_devices === 1 ? "" : "s"} of ${tenant.quota === null ? "any number" : tenant.quota}`,
    String(tenant.opportunistic_devices), String(tenant.waiting_jobs)],
  (cell, tenant) => {
    const used = cell.parentElement.cells[1];
    let meter = used.querySelector(".meter");
    if (!meter) {
      meter = make("span", { class: "bar meter", "aria-hidden": "true" }, make("i"));
      used.prepend(meter); // what it shows stands beside it
    }
    meter.hidden = tenant.quota === null;
    meter.firstElementChild.style.width = `${Math.min(100, (100 * tenant.guaranteed_devices) / Math.max(1, tenant.quota || 0))}%`;
    button(cell, "Set quota", `Set the quota of ${tenant.name}`, () => setQuota(tenant));
  });
}

// Nodes that report and that the engine does not know, in the words of those that it knows.
function reportingOnly() {
  const known = new Set((state.nodes || []).map((node) => node.name));
  return ((state.reports && state.reports.nodes) || []).filter((node) => !known.has(node.name)).map((node) => ({
    ...node, only: true, devices: [],
    reason: node.state === "up" ? "reports; the engine starts nothing there" : `silent for ${span(node.silent_seconds)}`,
  }));
}

function drawNodes() {
  const silent = new Map(((state.reports && state.reports.nodes) || []).filter((node) => node.state !== "up")
    .map((node) => [node.name, node.silent_seconds]));
  rows(byId("nodes"), [...(state.nodes || []), ...reportingOnly()], (node) => node.name, (node) => [
    { text: node.name }, { text: node.state, kind: `state ${node.state}` }, String(node.cores),
    bytes(node.memory_mib * 1024 * 1024), String(node.only ? node.device_count : node.devices.length),
    { text: node.reason, small: !node.only && silent.has(node.name) ? `its reports: silent for ${span(silent.get(node.name))}` : "", words: true }],
  (cell, node) => {
    if (node.only) {
      button(cell, "", ""); // nothing is started there
    } else if (node.state === "drained" || node.state === "avoided") {
      button(cell, "Undrain", `Undrain ${node.name}`,
        () => change({ type: "undrain", node: node.name }, `${node.name} is given jobs again.`));
    } else {
      button(cell, "Drain", `Drain ${node.name}`, () => drainNode(node));
    }
  });
  const more = (state.reports && state.reports.left_out) || 0;
  const note = byId("nodes-note");
  note.hidden = more === 0;
  put(note, more === 0 ? "" : `${more} more node${more === 1 ? " reports" : "s report"}: commensal nodes shows all.`);
}

function drawEvents() {
  const names = new Map((state.jobs || []).map((job) => [job.id, job.name]));
  rows(byId("events"), [...(state.events || [])].reverse().slice(0, 100), (event) => event.number, (event) => [
    { text: new Date(event.at_ms).toLocaleTimeString() },
    { text: `${event.job} ${names.get(event.job) || ""}`.trim() },
    event.from === event.to ? event.to : `${event.from} → ${event.to}`, { text: event.reason, words: true }]);
}

const MOST_CARDS = 200;

// Devices of nodes that only report: who is on them, the nodes say themselves.
function reportedDevices() {
  return reportingOnly().flatMap((node) => {
    const one = told.get(node.name);
    return ((one && one.devices) || []).map((device, number) => {
      const here = one.jobs.filter((record) => (record.devices || ["host"]).includes(device.id));
      return { node, number, device: { id: device.id, type: device.name || device.type, jobs: [] },
        who: here.map((record) => `${record.job.name || record.job.id}, ${record.job.class}`) };
    });
  });
}

function engineDevices() {
  const jobs = new Map((state.jobs || []).map((job) => [job.id, job]));
  return (state.nodes || []).flatMap((node) => node.devices.map((device, number) => ({ node, device, number,
    who: device.jobs.map((on) => {
      const job = jobs.get(on.id) || {};
      return [`${job.name || "job"} (${on.id})`, on.class, minima(job)].filter(Boolean).join(", ");
    }) })));
}

function drawDevices() {
  const every = [...engineDevices(), ...reportedDevices()];
  // Where not all have room, those with jobs come first.
  const all = every.length <= MOST_CARDS ? every
    : [...every.filter((one) => one.who.length > 0), ...every.filter((one) => one.who.length === 0)];
  const more = byId("devices-note");
  more.hidden = all.length <= MOST_CARDS;
  put(more, more.hidden ? "" : `${all.length - MOST_CARDS} more devices are not shown here.`);
  const seen = new Set();
  const firsts = new Set(all.filter((one) => {
    const name = `${one.node.name}\n${one.device.id}`;
    return !seen.has(name) && seen.add(name);
  }));
  const create = () => make("li", {}, make("h3"), make("div", { class: "bar", "aria-hidden": "true" },
    make("i", { class: "guaranteed" }), make("i", { class: "opportunistic" }), make("i", { class: "others" })),
  make("p"), make("p"));
  fill(byId("device-list"), all.slice(0, MOST_CARDS), (one) => `${one.node.name}:${one.number}`, create, (item, one) => {
    const [title, bar, who, how] = item.children;
    put(title, `${one.node.name}:${one.number} ${one.device.type}`);
    // Several devices that share a machine's cores: what is known of them stands with the first.
    const at = told.get(one.node.name);
    const known = firsts.has(one) ? deviceOf(at, one.device.id) : undefined;
    item.classList.toggle("stale", Boolean(known && old(at)));
    const held = { guaranteed: 0, opportunistic: 0 };
    for (const record of known ? at.jobs : []) {
      if (record.ended || !(record.devices || ["host"]).includes(one.device.id)) continue;
      const lease = leaseOn(record, one.device.id);
      const alone = (record.devices || ["host"]).length === 1 && record.memory && record.memory.device_bytes;
      held[record.job.class] += (lease && lease.held_bytes) || alone || 0;
    }
    const capacity = known ? Math.max(1, known.capacity_bytes) : 0;
    const share = (part) => (capacity ? `${Math.min(100, (100 * part) / capacity)}%` : "0");
    bar.hidden = !known;
    bar.children[0].style.width = share(held.guaranteed);
    bar.children[1].style.width = share(held.opportunistic);
    bar.children[2].style.width = share((known && known.outside_bytes) || 0);
    put(who, one.who.length === 0 ? "free" : one.who.join("\n"));
    const lines = [];
    if (!known && one.device.memory_bytes) lines.push(`${bytes(one.device.memory_bytes)} of memory`);
    if (known) {
      if (old(at)) lines.push(`${old(at)}; before that:`);
      lines.push(`${bytes(known.held_bytes)} held, ${bytes(known.granted_bytes)} granted of ${bytes(known.capacity_bytes)}`);
      const use = known.use || {};
      if (use.guaranteed_share !== null && use.guaranteed_share !== undefined) {
        let line = `busy: guaranteed ${percent(use.guaranteed_share)}, opportunistic ${percent(use.opportunistic_share || 0)}`;
        if (use.oracle_share !== null && use.oracle_share !== undefined) line += ` of ${percent(use.oracle_share)} to be had`;
        lines.push(line);
      }
      // Of the cluster's own jobs tiers and gates stand in the table of jobs.
      if (one.node.only) {
        for (const record of at.jobs.filter((job) => (job.devices || ["host"]).includes(one.device.id))) {
          const cells = [memory(record), gate(record)].map((cell) => (typeof cell === "object"
            ? [cell.text, cell.small].filter(Boolean).join(" ") : cell)).filter(Boolean);
          lines.push(`${record.job.name || record.job.id}: ${cells.join("; gate ")}`);
        }
      }
    }
    put(how, lines.join("\n"));
  });
}

function count(pick) {
  return ((state.summary && state.summary.jobs) || []).filter(pick).reduce((sum, entry) => sum + entry.count, 0);
}

function drawTiles() {
  if (!state.summary) return;
  const devices = state.summary.devices;
  const all = Object.values(devices).reduce((sum, number) => sum + number, 0);
  const tiles = [
    ["guaranteed", "guaranteed jobs", count((entry) => entry.class === "guaranteed")],
    ["opportunistic", "opportunistic jobs", count((entry) => entry.class === "opportunistic")],
    ["waiting", "jobs wait", state.summary.waiting],
    ["free", `devices free, of ${all}`, devices.free],
    ["shared", "devices shared by both classes", devices.shared],
    ["nodes", "nodes not up", Object.entries(state.summary.nodes).reduce((sum, [name, number]) => sum + (name === "up" ? 0 : number), 0)],
  ];
  fill(byId("tiles"), tiles, (tile) => tile[0], () => make("li", {}, make("b"), make("span")), (item, tile) => {
    put(item.children[0], String(tile[2]));
    put(item.children[1], tile[1]);
  });
}

function drawFacts() {
  const coordinator = state.coordinator;
  if (!coordinator) return;
  put(byId("facts"), `engine ${coordinator.engine}, policy ${coordinator.policy}, pid ${coordinator.pid}`);
  const problem = byId("problem");
  problem.hidden = !coordinator.problem;
  put(problem, coordinator.problem ? `The engine cannot be asked: ${coordinator.problem}` : "");
  put(byId("node-note"), told.size > 0
    ? "Bars: memory that guaranteed jobs, opportunistic jobs and others hold on machines that tell: this one, and those that report."
    : "No job has run under commensal on this machine yet, and no other reports, so nothing is known of memory and gates.");
}

// ---- charts -----------------------------------------------------------------------------------

const charts = {};

function chartOptions(stacked) {
  const ink = colour("--soft");
  const grid = colour("--grid");
  const axis = () => ({ stacked, ticks: { color: ink }, grid: { color: grid } });
  return {
    responsive: true, maintainAspectRatio: false, animation: false,
    scales: { x: axis(), y: axis() },
    plugins: { legend: { labels: { color: ink, boxWidth: 12 } } },
  };
}

function makeCharts() {
  for (const chart of Object.values(charts)) chart.destroy();
  const memoryOptions = chartOptions(true);
  memoryOptions.indexAxis = "y";
  memoryOptions.scales.x.title = { display: true, text: "MiB", color: colour("--soft") };
  memoryOptions.scales.y.ticks.callback = function shorten(value) {
    const text = this.getLabelForValue(value);
    return text.length > 18 ? `${text.slice(0, 17)}…` : text;
  };
  charts.memory = new Chart(byId("memory-chart"), {
    type: "bar",
    data: { labels: [], datasets: [
      { label: "device", data: [], backgroundColor: colour("--opportunistic"), maxBarThickness: 28 },
      { label: "host", data: [], backgroundColor: colour("--host-tier"), maxBarThickness: 28 },
      { label: "parked", data: [], backgroundColor: colour("--parked-tier"), maxBarThickness: 28 }] },
    options: memoryOptions,
  });
  const loadOptions = chartOptions(true);
  loadOptions.scales.x.type = "linear";
  loadOptions.scales.x.ticks.callback = (value) => (value === 0 ? "now" : value % 60 ? `${value} s` : `${value / 60} min`);
  loadOptions.scales.x.ticks.maxTicksLimit = 7;
  loadOptions.scales.x.ticks.includeBounds = false;
  loadOptions.scales.y.beginAtZero = true;
  loadOptions.scales.y.ticks.precision = 0;
  // "before": to the next point's time as before it, which is how it was.
  loadOptions.elements = { point: { radius: 0 }, line: { stepped: "before", borderWidth: 1.5 } };
  const area = (label, name) => ({ label, data: [], fill: true, borderColor: colour(name), backgroundColor: `${colour(name)}aa` });
  charts.load = new Chart(byId("load-chart"), {
    type: "line",
    data: { datasets: [area("guaranteed", "--guaranteed"), area("opportunistic", "--opportunistic"), area("waiting", "--waiting")] },
    options: loadOptions,
  });
}

function drawCharts() {
  if (!charts.memory) return;
  const held = allRecords().filter((record) => !record.ended && record.memory).slice(0, MOST_BARS);
  charts.memory.data.labels = held.map((record) => record.job.name);
  ["device", "host", "parked"].forEach((tier, number) => {
    charts.memory.data.datasets[number].data = held.map((record) => (record.memory[`${tier}_bytes`] || 0) / 1048576);
  });
  charts.memory.update();
  put(byId("memory-text"), held.length === 0 ? "no job has memory here" : held
    .map((record) => `${record.job.name}: ${bytes(record.memory.device_bytes || 0)} on the device, ${bytes(record.memory.host_bytes || 0)} host, ${bytes(record.memory.parked_bytes || 0)} parked`).join("; "));
  const now = Date.now();
  const secondsAgo = (point) => Math.round(Math.max(point.at - now, -KEEP_MS) / 1000);
  const points = history.length ? [...history, { ...history[history.length - 1], at: now }] : [];
  ["guaranteed", "opportunistic", "waiting"].forEach((name, number) => {
    charts.load.data.datasets[number].data = points.map((point) => ({ x: secondsAgo(point), y: point[name] }));
  });
  const first = points.length ? secondsAgo(points[0]) : 0;
  charts.load.options.scales.x.min = Math.min(-60, first);
  charts.load.options.scales.x.ticks.stepSize = first < -300 ? 180 : undefined;
  charts.load.options.scales.x.max = 0;
  charts.load.update();
  const last = points[points.length - 1];
  put(byId("load-text"), last ? `now: ${last.guaranteed} guaranteed, ${last.opportunistic} opportunistic, ${last.waiting} waiting` : "");
}

// The coordinator says how it was before this page was open, a point every few seconds; what this
// page has seen is finer, and is all there is from before the coordinator's last start.
function remember() {
  if (!state.summary) return;
  const point = {
    at: Date.now(),
    guaranteed: count((entry) => entry.class === "guaranteed"),
    opportunistic: count((entry) => entry.class === "opportunistic"),
    waiting: state.summary.waiting,
  };
  if (history.length === 0) {
    history = (state.load || []).map((told) => ({ ...told, at: Math.min(told.at_ms, point.at) }));
  }
  const last = history[history.length - 1];
  const same = last && ["guaranteed", "opportunistic", "waiting"].every((name) => last[name] === point[name]);
  if (!same) history.push(point);
  while (history.length > 1 && history[1].at < point.at - KEEP_MS) history.shift();
}

function draw() {
  hear();
  drawFacts();
  drawTiles();
  drawDevices();
  drawJobs();
  drawTenants();
  drawNodes();
  drawEvents();
  drawCharts();
}

// ---- light and dark ---------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const chosen = localStorage.getItem("commensal-theme") || "system";
  document.documentElement.dataset.theme = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  put(byId("theme"), `Theme: ${chosen}`);
  makeCharts();
  drawCharts();
}

function nextTheme() {
  const order = ["system", "light", "dark"];
  const chosen = localStorage.getItem("commensal-theme") || "system";
  localStorage.setItem("commensal-theme", order[(order.indexOf(chosen) + 1) % order.length]);
  applyTheme();
}

// ---- live -------------------------------------------------------------------------------------

const RETRY_MS = 1500;
let source = null;

function connection(kind, text) {
  const element = byId("connection");
  element.className = `connection ${kind}`;
  put(element, text);
}

async function whyNot() {
  try {
    const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
    const answer = await fetch("/api/v1/coordinator", { headers });
    return answer.ok ? "" : (await answer.json()).what;
  } catch {
    return "";
  }
}

function connect() {
  if (source) source.close();
  source = new EventSource(`/api/v1/live${token.get() ? `?token=${encodeURIComponent(token.get())}` : ""}`);
  source.addEventListener("state", (event) => {
    Object.assign(state, JSON.parse(event.data));
    document.documentElement.dataset.version = state.version;
    connection("live", "live");
    remember();
    draw();
  });
  source.onerror = async () => {
    const failed = source;
    connection("lost", "The coordinator does not answer: trying again");
    if (failed.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    const why = await whyNot();
    if (why) connection("lost", why);
    setTimeout(() => { if (source === failed) connect(); }, RETRY_MS);
  };
}

takeTokenFromAddress();
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    takeTokenFromAddress();
    connect();
  }
});
byId("theme").addEventListener("click", nextTheme);
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  say(token.get() ? "The token is used from now on." : "The token is forgotten.");
  connect();
});
dark.addEventListener("change", applyTheme);
applyTheme();
connect();
setInterval(draw, 5000); // ages grow
