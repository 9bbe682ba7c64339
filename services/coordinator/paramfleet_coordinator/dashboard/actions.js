"use strict";
// What a person may do to the job. The coordinator judges; its refusal is shown in its words.
// Controls are made once and kept, so that redrawing the page doesn't move the focus.

const actions = (() => {
  const SETTINGS = {
    lr: { words: "lr", modes: ["sync", "async", "geo"] },
    k_steps: { words: "k_steps", modes: ["geo"] },
    max_staleness: { words: "max staleness", modes: ["async"] },
  };
  const find = (id) => document.getElementById(id);

  function show(words) {
    find("answer").textContent = words;
  }

  async function post(name, path, body = {}) {
    show(`${name}: asking`);
    try {
      const answer = await fetch(`/api/v1/${path}`, {
        method: "POST",
        headers: headers({ "Content-Type": "application/json" }),
        body: JSON.stringify(body),
      });
      const text = await answer.text();
      if (!answer.ok) {
        show(reasonIn(text));
        if (answer.status === 401) showLogin();
        return null;
      }
      show(`${name}: done`);
      return JSON.parse(text);
    } catch (error) {
      show(`${name}: ${error.message}`);
      return null;
    }
  }

  function reasonIn(text) {
    try {
      return JSON.parse(text).error.message;
    } catch {
      return text || "refused";
    }
  }

  // Resolves to whether the person is sure. Escape is a no. A dialog's close event comes later: it
  // may be open again by then, for another question.
  let settle = () => {};
  function sure(words) {
    const dialog = find("sure");
    settle(false);
    find("sure-words").textContent = words;
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise((done) => {
      settle = done;
    });
  }

  async function end() {
    if (await sure("End the job? The workers finish their training now; it can't be undone.")) {
      await post("end", "end");
    }
  }

  async function drain(event) {
    event.preventDefault();
    const rank = find("drain-rank").value;
    if (rank === "") return;
    if (await sure(`Drain worker ${rank}? It leaves, and the others continue without it.`)) {
      await post(`drain of worker ${rank}`, `workers/${rank}/drain`);
    }
  }

  // "none" is no bound; what is no number goes as it is, and is refused in words.
  function valueOf(text) {
    if (text.toLowerCase() === "none") return null;
    const value = Number(text);
    return Number.isFinite(value) ? value : text;
  }

  async function change(event) {
    event.preventDefault();
    const wanted = {};
    for (const input of find("settings").querySelectorAll("input")) {
      const text = input.value.trim();
      if (text && !input.parentElement.hidden) wanted[input.name] = valueOf(text);
    }
    if (!Object.keys(wanted).length) {
      show("settings: write a value first");
      return;
    }
    const said = await post("settings", "settings", wanted);
    if (said === null) return;
    const changes = Object.entries(said.settings).map(
      ([name, value]) => `${name} = ${value ?? "none"}, was ${said.before[name] ?? "none"}`,
    );
    show(`settings: ${changes.join("; ")}`);
    find("settings").reset();
  }

  function drawSettings(status) {
    for (const input of find("settings").querySelectorAll("input")) {
      input.parentElement.hidden = !SETTINGS[input.name].modes.includes(status.mode);
      const now = String(status.settings[input.name] ?? "none");
      if (input.placeholder !== now) input.placeholder = now;
    }
    find("settings").hidden = status.mode === null;
  }

  function drawDrain(status) {
    const select = find("drain-rank");
    const ranks = status.workers.filter((w) => w.alive && !w.done).map((w) => String(w.rank));
    const present = [...select.options].map((option) => option.value);
    if (ranks.join() !== present.join()) {
      const chosen = select.value;
      select.replaceChildren(
        ...ranks.map((rank) => charts.element("option", { value: rank }, rank)),
      );
      if (ranks.includes(chosen)) select.value = chosen;
    }
    find("drain").hidden = status.mode === null || status.mode === "sync";
  }

  function draw(status) {
    drawSettings(status);
    drawDrain(status);
  }

  for (const [name, { words }] of Object.entries(SETTINGS)) {
    const field = charts.element("span");
    const id = `set-${name}`;
    field.append(
      charts.element("label", { for: id }, words),
      charts.element("input", { id, name, type: "text", autocomplete: "off" }),
    );
    find("settings").append(field);
  }
  find("settings").append(charts.element("button", { type: "submit" }, "Change"));
  find("settings").hidden = true;
  find("drain").hidden = true;
  for (const button of document.querySelectorAll("[data-action]")) {
    button.addEventListener("click", () => post(button.dataset.action, button.dataset.action));
  }
  find("sure").addEventListener("close", ({ target }) => {
    if (!target.open) settle(target.returnValue === "yes");
  });
  find("end").addEventListener("click", end);
  find("drain").addEventListener("submit", drain);
  find("settings").addEventListener("submit", change);
  return { draw };
})();
