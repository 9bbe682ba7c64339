"""The dashboard in a real Chromium, of a real job; and the commands in a terminal."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paramfleet_shared.settings.config import read_environment
from paramfleet_shared.system.processes.keeping import tied

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LATE_MS = 60_000
"""Until a page shows what it is to show, on however busy a machine."""
METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"
SCREENSHOTS = Path(__file__).parents[3] / read_environment().get(
    "DASHBOARD_SCREENSHOTS", "log/screenshots"
)
"""Kept after a run, for people; git ignores the folder. ``make screenshots`` makes those of
the pages."""
PROMETHEUS = "http://prometheus.example:9090"


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: install it (Debian: apt-get install chromium)")
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 - only with a browser

    expect.set_options(timeout=LATE_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


@pytest.fixture
def job(jobs: Any, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Start a job whose worker 1 reads slowly; end it in good order."""
    args = ("--mode", "async", "--asks", "--slow_data_ms", "150")
    env = {
        "PARAMFLEET_LOG_FORMAT": "json",
        "PARAMFLEET_COORDINATOR__PROMETHEUS_URL": f"{PROMETHEUS}/",
    }
    running = jobs.start("train_long.py", *args, servers=1, **env)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")
    admin = running.admin()
    yield running, admin
    with contextlib.suppress(OSError):  # a test may have ended it
        admin.post("end")
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
    assert_logs_are_json(ended)


def assert_logs_are_json(ended: Any) -> None:
    """Every line of a server and the coordinator, and those of a worker's own log."""
    events: dict[str, set[tuple[str, str]]] = {}
    for name, text in ended.logs.items():
        lines = [line for line in text.splitlines() if not line.startswith("pid=")]
        if name.startswith("worker"):  # whose script prints
            lines = [line for line in lines if line.startswith("{")]
        said = [json.loads(line) for line in lines]
        assert all(each["time"].endswith("Z") and each["fields"] is not None for each in said)
        events[name] = {(f"{each['role']}{each['index']}", each["event"]) for each in said}
    assert ("coordinatorNone", "coordinator.serving") in events["coordinator"]
    assert ("coordinatorNone", "job.training") in events["coordinator"]
    assert ("pserver0", "pserver.serving") in events["pserver0"]
    assert ("worker1", "worker.joined") in events["worker1"]


def shot(page: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"dashboard-{name}.png", full_page=True)


def shot_of_the_first(page: Any) -> None:
    """Keep the page, and what fits on a screen: for the beginning of the README."""
    shot(page, "light")
    clip = {"x": 0, "y": 0, "width": 1400, "height": 880}
    page.screenshot(path=SCREENSHOTS / "dashboard-top.png", full_page=True, clip=clip)


def violations(page: Any) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - as above

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]


def test_a_person_sees_the_job_names_the_straggler_and_pauses_it(
    job: tuple[Any, Any], browser: Any
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    running, admin = job
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else 0)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    hosts: set[str] = set()
    page.on("request", lambda asked: hosts.add(asked.url.partition("/dashboard")[0]))

    link = paramfleet(running, "page").stdout.strip()
    assert link.startswith(f"{admin.url}/#code=")
    page.goto(link)
    expect(page).to_have_title(re.compile("training$"))
    page.wait_for_selector("#straggler.named")
    assert "worker 1 is behind, its data is slow" in page.inner_text("#straggler")
    expect(page.locator("#loss-chart path.curve.s1")).to_have_count(1)
    expect(page.locator("#workers tbody tr")).to_have_count(2)
    assert "its data is slow" in page.inner_text("#workers")
    assert page.locator("#events li", has_text="worker 1 joined").count() == 1
    assert page.locator("#split-chart rect").count() >= 12
    assert "memory" in page.inner_text("#tables")
    expect(page.locator("#shards tbody tr").first).to_contain_text("deep")
    look_at_what_is_first(page)
    assert_laid_out(page)
    shot_of_the_first(page)
    assert violations(page) == []

    pause_and_resume(page)
    dark_and_small(page)
    page.set_viewport_size({"width": 1400, "height": 900})
    change_settings(page)
    drain_worker_1(page)
    assert complaints == [], "before a refusal, which a browser complains of"
    end_the_job(page)
    done = {"pause", "resume", "settings", "workers/1/drain", "workers/0/drain", "end"}
    asked = {f"{admin.url}/api/v1/{path}" for path in ("login", "stream", *done)}
    assert hosts == {f"{admin.url}/", admin.url, *asked, "data:,"} & hosts
    assert asked <= hosts
    assert page.url == f"{admin.url}/", "the code is gone from it"
    assert {entry["who"] for entry in admin.get("audit")} == {"token tests, in a browser"}
    context.close()


def test_the_server_that_waits_for_a_worker_is_shown_first(jobs: Any, browser: Any) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    running = jobs.start("train_long.py", "--mode", "sync", "--asks", servers=1)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")
    page = browser.new_page()
    page.goto(paramfleet(running, "page").stdout.strip())
    expect(page).to_have_title(re.compile("training$"))

    running.send("worker1", signal.SIGSTOP)
    try:
        expect(page.locator("#waits.named")).to_have_text("pserver 0 waits for worker 1")
        expect(page.locator("#servers tbody tr").first).to_contain_text("1")
        assert violations(page) == []
    finally:
        running.send("worker1", signal.SIGCONT)
    expect(page.locator("#waits")).to_have_text("no pserver waits")
    page.close()
    running.admin().post("end")
    assert set(running.end().codes.values()) == {0}


EVIL = "evil.example"


def test_a_page_of_another_site_whose_name_leads_here_steers_nothing(
    job: tuple[Any, Any],
) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH: install it (Debian: apt-get install chromium)")
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 - as above

    running, admin = job
    link = paramfleet(running, "page").stdout.strip()
    port = admin.url.rpartition(":")[2]
    act = """async (path) => {
        const key = localStorage.getItem("paramfleet-key");
        const answer = await fetch(path, {
            method: path.endsWith("pause") ? "POST" : "GET",
            headers: {"Content-Type": "application/json", ...(key && {"Paramfleet-Key": key})},
            body: path.endsWith("pause") ? "{}" : undefined,
        });
        return [answer.status, await answer.text()];
    }"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
            ],
        )
        context = browser.new_context()
        ours = context.new_page()
        ours.goto(link)
        expect(ours).to_have_title(re.compile("training$"))  # so it has its key
        theirs = context.new_page()
        loaded = theirs.goto(f"http://{EVIL}:{port}/")
        answers = [theirs.evaluate(act, path) for path in ("/api/v1/status", "/api/v1/pause")]
        still = ours.evaluate(act, "/api/v1/status")
        (cookie,) = context.cookies()
        browser.close()

    assert loaded is not None
    assert loaded.status == 421
    assert [status for status, _ in answers] == [421, 421]
    assert "PARAMFLEET_ADMIN_HOSTS" in answers[1][1]
    assert still[0] == 200
    assert admin.get("status")["state"] == "training"
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert cookie["name"] == f"paramfleet-{port}"


def test_a_person_gives_a_token_where_they_have_no_link(
    job: tuple[Any, Any], browser: Any
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    running, admin = job
    page = browser.new_page()
    page.goto(f"{admin.url}/#code=spent")
    expect(page.locator("#refusal")).to_contain_text("` makes another")
    expect(page.get_by_label("Token")).to_be_focused()
    assert page.url == f"{admin.url}/"
    assert violations(page) == []

    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#refusal")).to_contain_text("no such token")
    page.get_by_label("Token").fill(running.token)
    page.keyboard.press("Enter")
    expect(page).to_have_title(re.compile("training$"))
    expect(page.locator("#login")).to_be_hidden()
    assert running.token not in page.evaluate("JSON.stringify([localStorage, sessionStorage])")
    page.close()


def test_where_reading_is_open_a_person_enters_when_they_change_something(
    jobs: Any, browser: Any
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    env = {"PARAMFLEET_ADMIN_OPEN_READING": "true"}
    running = jobs.start("train_long.py", "--mode", "async", "--asks", servers=1, **env)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")
    admin = running.admin()
    admin.wait(lambda status: status["mode"])
    page = browser.new_page()
    page.goto(f"{admin.url}/")
    expect(page).to_have_title(re.compile("training$"))
    expect(page.locator("#login")).to_be_hidden()

    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#answer")).to_contain_text("is for admin: no token")
    page.get_by_label("Token").fill(running.token)
    page.keyboard.press("Enter")
    expect(page.locator("#login")).to_be_hidden()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#answer")).to_have_text("pause: done")
    page.close()

    assert [entry["who"] for entry in admin.get("audit")] == ["token tests, in a browser"]
    admin.post("end")
    assert set(running.end().codes.values()) == {0}


def look_at_what_is_first(page: Any) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    expect(page.locator("#workers tbody tr").first).to_contain_text("its data is slow")
    rows_and_dense = 2
    expect(page.locator("#growth-chart path.curve")).to_have_count(rows_and_dense)
    query = f"{PROMETHEUS}/graph?g0.expr=paramfleet_job_samples_per_s&g0.tab=0"
    expect(page.get_by_role("link", name="Prometheus")).to_have_attribute("href", query)
    expect(page.locator("#waits")).to_have_text("no pserver waits")


LAYOUT = """() => {
    const page = document.querySelector("main").getBoundingClientRect();
    const shown = [...document.querySelectorAll("main > section")].filter((s) => !s.hidden);
    const boxes = shown.map((s) => s.getBoundingClientRect());
    const holes = shown.filter((section, index) => {
        const row = boxes.filter((box) => box.top === boxes[index].top);
        const free = page.right - Math.max(...row.map((box) => box.right));
        return free > 20 || row[0].left - page.left > 20;
    });
    const charts = [...document.querySelectorAll(".chart > svg")].map(
        (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width,
    );
    const letters = [...document.querySelectorAll(".chart text")].map(
        (text) => parseFloat(getComputedStyle(text).fontSize),
    );
    return {
        holes: holes.map((section) => section.getAttribute("aria-labelledby")),
        scales: [...new Set(charts)],
        letters: [...new Set(letters)],
        first: shown[0].innerText.split("\\n")[0],
    };
}"""


LAID_OUT = """() => new Promise((resolve) => {
    const fits = (svg) =>
        svg.viewBox.baseVal.width === Math.max(240, Math.floor(svg.parentNode.clientWidth));
    const look = () => [...document.querySelectorAll('.chart > svg')].every(fits)
        ? resolve()
        : requestAnimationFrame(look);
    look();
})"""


def assert_laid_out(page: Any) -> None:
    """No place in the grid is empty, and letters of charts are as large at each width."""
    page.evaluate(LAID_OUT)  # the page forbids what wait_for_function does
    found = page.evaluate(LAYOUT)
    assert found["holes"] == []
    assert found["scales"] == [1]
    assert found["letters"] == [12]
    assert found["first"] == "What holds the job up"


def dark_and_small(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    shot(page, "dark")
    page.set_viewport_size({"width": 375, "height": 740})
    assert_laid_out(page)
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(wide)
    shot(page, "phone")
    assert violations(page) == []


def pause_and_resume(page: Any) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text("pause: done")
    expect(page).to_have_title(re.compile("paused$"))
    page.get_by_role("button", name="Resume").click()
    expect(page).to_have_title(re.compile("training$"))


def change_settings(page: Any) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    expect(page.get_by_label("k_steps")).to_be_hidden()
    page.get_by_label("lr", exact=True).focus()
    page.keyboard.type("0.02")
    page.keyboard.press("Tab")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text(
        "settings: lr = 0.02, was 0.01; max_staleness = 7, was none"
    )
    expect(page.locator("#state")).to_contain_text("0.02")


def drain_worker_1(page: Any) -> None:
    """Change one's mind at first; by keyboard alone."""
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    page.get_by_label("Worker", exact=True).select_option("1")
    button = page.get_by_role("button", name="Drain…")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Drain worker 1?")
    assert violations(page) == []
    shot(page, "drain")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(button).to_be_focused()
    # Asked again before the browser has told that the first dialog is closed.
    page.evaluate(
        "() => { const button = document.querySelector('#drain button'); button.click();"
        " document.getElementById('sure').close(); button.click(); }"
    )
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text("drain of worker 1: done")
    expect(page.locator("#workers")).to_contain_text("done")


def end_the_job(page: Any) -> None:
    """After a refusal is read; by keyboard."""
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    page.get_by_label("Worker", exact=True).select_option("0")
    page.get_by_role("button", name="Drain…").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator("#answer")).to_contain_text("worker 0 saves and reports the result")

    page.get_by_role("button", name="End the job…").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_text("end: done")


def read(url: str, heads: dict[str, str]) -> str:
    request = urllib.request.Request(url, headers=heads)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def metrics_of(admin: Any) -> set[str]:
    """Return the names of all metrics of all roles, of gauges also without a value."""
    members = json.loads(read(f"{admin.url}/status", admin.heads))["members"]
    names: set[str] = set()
    for address in [admin.url, *(f"http://{member['admin']}" for member in members)]:
        text = read(f"{address}/metrics", admin.heads)
        names |= set(re.findall(r"^(paramfleet_\w+)[ {]", text, re.MULTILINE))
        names |= set(re.findall(r"^# TYPE (paramfleet_\w+) gauge", text, re.MULTILINE))
    return {name for name in names if not name.endswith("_created")}


def paramfleet(running: Any, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tied([sys.executable, "-m", "paramfleet_worker", *args]),
        env={
            **read_environment(),
            "PARAMFLEET_JOB": running.job,
            "PARAMFLEET_REDIS": running.redis,
            "PARAMFLEET_ADMIN_TOKEN": running.token,
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_a_person_steers_the_job_in_a_terminal(job: tuple[Any, Any], tmp_path: Path) -> None:
    running, admin = job
    admin.wait(lambda status: status["straggler"])

    top = paramfleet(running, "top", "--once")
    assert top.returncode == 0, top.stderr
    assert "training, async" in top.stdout
    assert "its data is slow" in top.stdout
    status = json.loads(paramfleet(running, "status", "--json").stdout)
    assert status["straggler"]["cause"] == "data"
    tables = paramfleet(running, "tables").stdout
    assert "deep" in tables
    assert "the shards used most" in tables

    of_jobs = [line for line in METRICS.read_text().splitlines() if "| serving |" not in line]
    assert metrics_of(admin) == set(re.findall(r"`(paramfleet_\w+)`", "\n".join(of_jobs)))

    changed = paramfleet(running, "set", "max-staleness=9", "lr=0.02")
    assert changed.stdout.splitlines() == ["max_staleness = 9, was null", "lr = 0.02, was 0.01"]
    refused = paramfleet(running, "set", "k_steps=4", "--url", admin.url)
    assert refused.returncode == 1
    assert "change of k_steps is refused in mode async: only geo has it" in refused.stderr

    assert paramfleet(running, "pause").stdout == "paused\n"
    admin.wait(lambda said: said["state"] == "paused")
    assert paramfleet(running, "resume").stdout == "resumed\n"


def test_a_person_sees_the_passes_of_each_worker(
    jobs: Any, browser: Any, tmp_path: Path
) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only with a browser

    args = ("--asks", "--save", str(tmp_path / "checkpoint"))
    running = jobs.start("train_passes.py", *args, workers=2, servers=1)
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "an epoch ended")
    admin = running.admin()
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()

    page.goto(paramfleet(running, "page").stdout.strip())

    expect(page.locator("#passes tbody tr")).to_have_count(2)
    expect(page.locator("#passes tbody tr").first).to_contain_text("100 %")
    assert "stayed on the device" in page.inner_text("#passes")
    assert violations(page) == []
    shot(page, "passes")
    admin.post("end")
    ended = running.end()
    assert ended.codes == dict.fromkeys(running.pids, 0), ended.story()
