"use strict";
// The page of one job: follows /api/v1/stream and draws what it says.
// A stream that breaks is taken up where it was, after a moment that grows.

const PHASES = ["data", "pull", "compute", "push", "barrier", "wait", "pause"];
const KEPT_S = 900;
const MAX_EVENTS = 300;
const WAITS_S = 2;
const RETRY_MS = [500, 1000, 2000, 5000];
const KEY = "paramfleet-key";

const at = (id) => document.getElementById(id);
const view = { status: null, workers: {}, servers: {}, tables: [], waits: {}, events: 0, seen: null, failures: 0 };

// A session has a cookie, which scripts don't see, and a key, which other ports of this host
// don't get: both go with every request.
function headers(more = {}) {
  const key = localStorage.getItem(KEY);
  return key ? { ...more, "Paramfleet-Key": key } : more;
}

// --- entering --------------------------------------------------------------------------

// Resolves to whether a session began; the answer's words are shown if it didn't.
async function enter(shown) {
  const answer = await fetch("/api/v1/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(shown),
  });
  const said = await answer.json();
  if (answer.ok) localStorage.setItem(KEY, said.key);
  at("refusal").textContent = answer.ok ? "" : said.error.message;
  return answer.ok;
}

let entered = () => {};

// The address that `paramfleet page` prints ends with a code that works once.
async function enterByAddress() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  try {
    await enter({ code });
  } catch (error) {
    at("refusal").textContent = error.message;
  }
}

async function enterByToken(event) {
  event.preventDefault();
  const token = at("token").value.trim();
  at("token").value = "";
  try {
    if (await enter({ token })) at("login").hidden = true;
  } catch (error) {
    at("refusal").textContent = error.message;
  }
  entered();
}

function showLogin() {
  if (!at("login").hidden) return;
  at("login").hidden = false;
  at("token").focus();
}

function askToken() {
  showLogin();
  say("a token is needed");
  return new Promise((done) => {
    entered = () => {
      view.failures = 0;
      done();
    };
  });
}

// --- following -------------------------------------------------------------------------

async function follow() {
  for (;;) {
    try {
      await readStream();
    } catch (error) {
      say(`no connection: ${error.message}; trying again`);
    }
    const wait = RETRY_MS[Math.min(view.failures, RETRY_MS.length - 1)];
    view.failures += 1;
    await new Promise((done) => setTimeout(done, wait));
  }
}

async function readStream() {
  const last = view.seen === null ? {} : { "Last-Event-ID": String(view.seen) };
  const answer = await fetch("/api/v1/stream", { headers: headers(last), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) {
    await askToken();
    return;
  }
  if (!answer.ok) throw new Error(`the coordinator answered ${answer.status}`);
  at("login").hidden = true;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream ended");
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      take(text.slice(0, end));
      text = text.slice(end + 2);
    }
  }
}

function take(message) {
  const fields = {};
  for (const line of message.split("\n")) {
    const colon = line.indexOf(": ");
    fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  const content = JSON.parse(fields.data);
  view.seen = Number(fields.id);
  view.failures = 0;
  view.status = content.status;
  if (fields.event === "whole") {
    view.workers = content.history.workers;
    view.servers = content.history.servers;
    view.tables = content.history.tables;
    at("events").replaceChildren();
    view.events = 0;
  } else {
    add(view.workers, content.workers);
    add(view.servers, content.servers);
    if (content.tables) keep(view.tables, content.tables);
  }
  content.events.forEach(addEvent);
  say("live");
  draw();
}

function add(histories, samples) {
  for (const [key, sample] of Object.entries(samples)) keep((histories[key] ??= []), sample);
}

function keep(history, sample) {
  history.push(sample);
  while (history.length && history[0].at_s < sample.at_s - KEPT_S) history.shift();
}

function addEvent(event) {
  if (event.number <= view.events) return;
  view.events = event.number;
  const item = charts.element("li");
  const ago = Math.max(0, Math.round(view.status.now_s - event.at_s));
  item.append(charts.element("time", {}, clockOf(ago)), event.words);
  const list = at("events");
  list.prepend(item);
  while (list.children.length > MAX_EVENTS) list.lastChild.remove();
}

function clockOf(secondsAgo) {
  const when = new Date(Date.now() - 1000 * secondsAgo);
  return when.toLocaleTimeString("en-GB");
}

function say(words) {
  if (at("connection").textContent !== words) at("connection").textContent = words;
}

// --- drawing ---------------------------------------------------------------------------

function draw() {
  const status = view.status;
  at("job").textContent = status.job;
  document.title = `${status.job}: ${status.state}`;
  drawState(status);
  drawCurves(status);
  drawTables(status);
  actions.draw(status);
}

function drawState(status) {
  const facts = [
    ["state", status.state],
    ["mode", status.mode],
    ["loss", status.loss],
    ["examples/s", status.samples_per_s],
    ["workers", status.worker_num],
    ["pservers", status.plan ? status.plan.processes.filter((p) => p.alive).length : status.server_num],
    ...(status.plan ? [["groups", status.server_num]] : []),
    ["lr", status.settings.lr],
    ["k_steps", status.settings.k_steps],
    ["max staleness", status.settings.max_staleness],
  ];
  if (status.failure) {
    facts.push(["failure", `${status.failure.role} ${status.failure.index}: ${status.failure.reason}`]);
  }
  at("state").replaceChildren(
    ...facts.map(([name, value]) => {
      const pair = charts.element("div");
      pair.append(charts.element("dt", {}, name), charts.element("dd", {}, charts.shown(value)));
      return pair;
    }),
  );
  // A number that changes each second would be read out each second.
  const isFree = ["async", "geo"].includes(status.mode);
  const nobody = isFree ? "no worker waits for a slower one" : "no worker is behind";
  name("straggler", status.straggler?.words, nobody);
  name("waits", status.servers.map(lastingWaitOf).filter(Boolean).join("; "), `no ${partWord(status)} waits`);
  const link = at("prometheus");
  link.hidden = !status.prometheus_url;
  if (status.prometheus_url && !link.href) {
    const page = status.prometheus_url.replace(/\/+$/, "");
    link.href = `${page}/graph?g0.expr=paramfleet_job_samples_per_s&g0.tab=0`;
  }
}

// A line of what holds the job up, or that nothing does.
function name(id, words, nothing) {
  const line = at(id);
  if (line.textContent !== (words || nothing)) line.textContent = words || nothing;
  line.classList.toggle("named", Boolean(words));
}

// What the rows of `status.servers` are: the parts of pservers where a plan says who hosts them.
function partWord(status) {
  return status.plan ? "group" : "pserver";
}

// What a part waits for, in words; empty if for nothing.
function waitOf(server) {
  const name = `${partWord(view.status)} ${server.index}`;
  if (server.disk_fault) return `the disk of ${name} takes no change: ${server.disk_fault}`;
  if (!server.alive) return `${name} is ${stateOf(server)}`;
  if (server.restoring) return `${name} restores its tables: ${progressOf(server.restoring)}`;
  if (!server.waiting_for.length) return "";
  const many = server.waiting_for.length > 1 ? "workers" : "worker";
  return `${name} waits for ${many} ${server.waiting_for.join(", ")}`;
}

// How far a server is that restores its tables: the snapshot comes first, then the log behind it.
function progressOf(restoring) {
  const share = (done, of) => `${Math.floor((100 * done) / Math.max(1, of))} %`;
  if (restoring.snapshot_bytes < restoring.of_snapshot_bytes) {
    return `${share(restoring.snapshot_bytes, restoring.of_snapshot_bytes)} of the snapshot`;
  }
  return `${share(restoring.commands, restoring.of_commands)} of the log`;
}

// The same, once it has lasted: in sync every server waits for somebody in each step.
function lastingWaitOf(server) {
  const words = waitOf(server);
  const known = view.waits[server.index];
  if (known?.words !== words) view.waits[server.index] = { words, since: view.status.now_s };
  const lasts = view.status.now_s - view.waits[server.index].since >= WAITS_S;
  return lasts || server.disk_fault || server.restoring || !server.alive ? words : "";
}

// Who holds the others up comes first, the rest as they come.
function firstThose(members, holds) {
  return [...members.filter(holds), ...members.filter((member) => !holds(member))];
}

function seriesOf(histories, prefix, value) {
  return Object.keys(histories)
    .sort((a, b) => a - b)
    .map((key) => ({
      name: `${prefix} ${key}`,
      color: Number(key),
      points: histories[key].map((sample) => [sample.at_s, value(sample)]),
    }));
}

function numberOr(value) {
  return typeof value === "number" ? value : NaN;
}

function drawCurves(status) {
  const now = status.now_s;
  const metric = chosenMetric(status);
  const ofMetric = (s) => numberOr(metric === "loss" ? s.loss : s.metrics?.[metric]);
  const losses = seriesOf(view.workers, "worker", ofMetric);
  charts.curves(at("loss-chart"), `${metric} of each worker`, losses, now);
  charts.legend(at("loss-legend"), losses.map((each) => each.name));
  const speeds = seriesOf(view.workers, "worker", (s) => numberOr(s.samples_per_s));
  charts.curves(at("speed-chart"), "samples a second of each worker", speeds, now);
  const part = partWord(status);
  const load = seriesOf(view.servers, part, (s) => numberOr(s.requests_per_s));
  name("load-title", "", `Requests a second of each ${part}`);
  charts.curves(at("load-chart"), `requests a second of each ${part}`, load, now);
  const names = [...new Set(view.tables.flatMap((sample) => Object.keys(sample.rows)))].slice(0, 8);
  const growth = names.map((table, color) => ({
    name: table,
    color,
    points: view.tables.map((sample) => [sample.at_s, numberOr(sample.rows[table])]),
  }));
  charts.curves(at("growth-chart"), "rows of each table, over all pservers", growth, now);
  charts.legend(at("growth-legend"), names);
  const split = status.workers
    .filter((worker) => !worker.done && Object.keys(worker.split).length)
    .map((worker) => ({
      name: `w ${worker.rank}`,
      parts: PHASES.map((phase) => worker.split[phase] ?? 0),
    }));
  charts.stacks(at("split-chart"), "share of time in each phase", PHASES, split);
  charts.legend(at("split-legend"), PHASES);
  const counts = new Map();
  for (const worker of status.workers) {
    for (const [bound, count] of Object.entries(worker.staleness_counts)) {
      counts.set(Number(bound), (counts.get(Number(bound)) ?? 0) + count);
    }
  }
  const bars = [...counts].sort(([a], [b]) => a - b).map(([bound, count]) => [String(bound), count]);
  charts.bars(at("staleness-chart"), "samples by staleness at most", bars);
}

function chosenMetric(status) {
  const select = at("metric");
  const names = ["loss", ...new Set(status.workers.flatMap((w) => Object.keys(w.metrics)))];
  const present = [...select.options].map((option) => option.value);
  if (names.join() !== present.join()) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => charts.element("option", { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
  return select.value || "loss";
}

function stateOf(member) {
  if (member.alive) return "alive";
  if (typeof member.waits_s === "number") return `lost, waited for ${Math.round(member.waits_s)} s`;
  return member.silent_s === null ? "silent" : `silent for ${Math.round(member.silent_s)} s`;
}

// The median of numbers of rows, and the largest of nine in ten; null where rows have none.
function middle(quantiles) {
  return quantiles ? `${quantiles[1]}, ${quantiles[2]}` : null;
}

// Rows that a table has gained in a minute, of the last ones; null before there are two samples.
function growthOf(table) {
  const known = view.tables.filter((sample) => Number.isFinite(sample.rows[table]));
  const last = known.at(-1);
  const first = known.find((sample) => sample.at_s >= (last?.at_s ?? 0) - 60);
  if (!last || first === last) return null;
  return Math.round((60 * (last.rows[table] - first.rows[table])) / (last.at_s - first.at_s));
}

function drawTables(status) {
  charts.table(
    at("workers"), "one row a worker",
    ["rank", "host", "state", "step", "examples/s", "loss", "staleness", "step p50 ms", "seen s ago", "why it lags"],
    firstThose(status.workers, (w) => w.rank === status.straggler?.rank).map((w) => [
      w.rank, w.host, w.done ? "done" : stateOf(w), w.step, w.samples_per_s,
      w.loss, w.staleness, w.step_ms.p50 ?? null, w.last_seen_s, w.lag_reason,
    ]),
  );
  const passes = status.workers.filter((w) => w.device_pass);
  at("passes-section").hidden = !passes.length;
  charts.table(
    at("passes"), "the last pass of each worker that has ended",
    ["rank", "passes", "batches", "rows", "stayed on the device", "written back", "device bytes", "build s", "begin s", "train s", "end s"],
    passes.map(({ rank, device_pass: p }) => [
      rank, p.ended, p.batches, p.rows, `${Math.round(100 * p.hit_share)} %`, p.written,
      p.device_bytes, p.build_s, p.begin_s, p.train_s, p.end_s,
    ]),
  );
  const streams = status.workers.filter((w) => w.by_days);
  at("days-section").hidden = !streams.length;
  charts.table(
    at("days"), "where each worker is in a training by days",
    ["rank", "day", "pass", "state", "waits for", "for s"],
    streams.map(({ rank, by_days: d }) => [
      rank, d.day, d.pass, d.state, d.waits_for ?? "", d.waited_s ?? "",
    ]),
  );
  const part = partWord(status);
  name("servers-title", "", part === "group" ? "Groups" : "Pservers");
  charts.table(
    at("servers"), `one row a ${part}`,
    ["index", "host", "state", "requests/s", "ms a request", "rows", "bytes", "waits for workers"],
    firstThose(status.servers, waitOf).map((s) => [
      s.index, s.host, s.alive ? s.state : stateOf(s), s.requests_per_s, s.request_ms, s.rows,
      s.bytes, s.waiting_for.join(", "),
    ]),
  );
  drawPlan(status.plan);
  charts.table(
    at("tables"), "over all pservers",
    ["name", "tier", "rows", "rows/min", "bytes", "refused", "removed", "age", "score", "pulls", "pushes"],
    status.tables.map((t) => [
      t.name, t.tier, t.rows, growthOf(t.name), t.bytes, t.refused, t.removed, middle(t.ages), middle(t.scores),
      t.pulls, t.pushes,
    ]),
  );
  const shards = status.tables.flatMap((t) => t.shards.map((shard) => [t.name, shard]));
  charts.table(
    at("shards"), "the most used of each table, by rows read and changed",
    ["table", "shard", part, "rows", "bytes", "read", "changed"],
    shards.map(([name, s]) => [name, s.shard, s.server, s.rows, s.bytes, s.pulled, s.pushed]),
  );
  charts.table(
    at("barriers"), status.barriers.length ? "where workers stand" : "no worker stands at one",
    ["name", "use", "has come", "has not"],
    status.barriers.map((b) => [b.name, b.generation, b.arrived.join(", "), b.missing.join(", ")]),
  );
}

function drawPlan(plan) {
  at("plan-section").hidden = !plan;
  if (!plan) return;
  const bare = plan.unprotected.length ? `without a follower: ${plan.unprotected.join(", ")}; ` : "";
  const words = `${bare}${plan.moves} moves, ${plan.takeovers} takeovers`;
  if (at("plan-words").textContent !== words) at("plan-words").textContent = words;
  charts.table(
    at("processes"), "one row a pserver",
    ["pserver", "host", "state", "groups", "follows"],
    plan.processes.map((p) => [
      p.index, p.host, !p.alive ? "gone" : p.draining ? "draining" : "serving",
      p.groups.join(", "), p.follows.join(", "),
    ]),
  );
  charts.table(
    at("groups"), "one row a group",
    ["group", "owner", "term", "follower", "lag", "moves to", "protected"],
    plan.groups.map((g) => [
      g.group, g.owner, g.term, g.follower, g.lag, g.moves_to, g.protected ? "yes" : "no",
    ]),
  );
}

let drawnWidth = 0;
new ResizeObserver(() => {
  const width = at("main").clientWidth;
  if (width === drawnWidth || !view.status) return;
  drawnWidth = width;
  draw();
}).observe(at("main"));
at("metric").addEventListener("change", () => view.status && draw());
at("login").addEventListener("submit", enterByToken);
addEventListener("hashchange", () => enterByAddress().then(() => entered()));
enterByAddress().then(follow);
