"""The dashboard as a browser shows it: a real service over a real server, reports by real calls."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kvmanager.control import checks
from kvmanager.reports import Hot
from tests.conftest import need_program
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import eventually
from tests.kvmanager.reporters import Redis, Reporter, latencies
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

TOKEN = "0123456789abcdef-red"  # noqa: S105  # of this test alone
SOON_MS = 15_000
POLL_MS = 5000
"""Between two questions of the page."""
PANELS = (
    *("served", "worth", "misses", "went", "ages", "latency"),
    *("bytes", "space", "processes", "hottest", "prefetch", "integrity"),
)
COUNTERS = {
    "tokens.l1": 1000,
    "tokens.l2": 2000,
    "tokens.l3": 4000,
    "tokens.recomputed": 3000,
    "get.pages": 200,
    "get.hits": 150,
    "get.bytes": 150 << 20,
    "exists.pages": 90,
    "exists.found": 83,
    "put.pages": 100,
    "put.stored": 60,
    "put.existed": 35,
    "put.bytes": 60 << 20,
    "load.us": 500_000,
    "prefill.us": 9_000_000,
    "prefill.tokens": 3000,
    "miss.never_written": 40,
    "miss.evicted": 10,
    "absent.never_written": 7,
    "refused.no_space": 3,
    "refused.quota": 1,
    "refused.mode": 1,
    "evicted.capacity": 20,
    "evicted.ttl": 3,
    "age.9": 11,
    "age.12": 12,
    "late.nvme.get": 1,
    "prefetch.pages": 80,
    "prefetch.used": 60,
    "prefetch.unfulfilled": 12,
    "prefetch.wasted": 5,
    "integrity.stale": 1,
}


CUT_OFF = """[...document.querySelectorAll("svg.chart text")].filter((text) => {
  const [own, whole] = [text, text.ownerSVGElement].map((one) => one.getBoundingClientRect());
  return own.left < whole.left || own.right > whole.right;
}).map((text) => text.textContent)"""

HIDDEN_PX = """(where) => Math.max(0, ...[...document.querySelectorAll(where)]
  .map((one) => one.scrollWidth - one.clientWidth))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        args = ["--no-sandbox"] if os.getuid() == 0 else []
        started = playwright.chromium.launch(executable_path=need_program("chromium"), args=args)
        yield started
        started.close()


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    started = Service(shared_server.url).start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def reporter(shared_server: Server) -> Iterator[Reporter]:
    """Of the tenant red, with figures for every panel; another one of blue hangs."""
    with shared_server.client() as client:
        client.flushall()
    with Redis(shared_server.url) as redis:
        made = Reporter(redis, tenant="red", model="Qwen3-32B", host="gpu-a-0123")
        made.beat()
        hot = (Hot(b"h" * 16, 9, 5),)
        made.report(COUNTERS | latencies("nvme", "get", 50, 500), pages=60, hot=hot)
        other = Reporter(redis, tenant="blue", model="DeepSeek-V3", host="gpu-b")
        other.beat()
        other.report({"get.pages": 100, "get.hits": 100}, hung=True)
        yield made


@contextmanager
def _page(
    browser: Browser, width: int = 1280, scheme: str = "light", expected: str = ""
) -> Iterator[Page]:
    """A page that must stay silent on its console. `expected`: what it may say all the same."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.clock.install()
    said: list[str] = []
    outside: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: outside.append(request.url))
    yield page
    context.close()
    assert [text for text in said if not expected or expected not in text] == []
    assert {url.split("/")[2].split(":")[0] for url in outside} <= {"127.0.0.1"}


def _open(page: Page, service: Service, query: str = "") -> None:
    page.goto(f"{service.url}/{query}")


def _next_poll(page: Page) -> None:
    """Its next question comes now."""
    page.clock.fast_forward(POLL_MS)


def _assert_accessible(page: Page) -> None:
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def test_every_question_is_answered_with_numerator_and_denominator(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser) as page:
        _open(page, service)
        tiles = page.locator("#tiles")
        expect(tiles).to_contain_text("40.0 %", timeout=SOON_MS)
        expect(tiles).to_contain_text("4,000 of 10 k tokens")
        expect(tiles).to_contain_text("92.2 %83 of 90 looked up; 250 of 300 read")
        expect(tiles).to_contain_text("2 of 2")
        for panel in PANELS:
            assert page.locator(f"#{panel} .body").inner_text().strip()
        for panel, text in {
            "worth": "gained",
            "misses": "7 of 90 pages looked up were not there",
            "latency": "get · nvme",
            "bytes": "150 MiB",
            "ages": "Median: 34.1 min to 1.14 h",
            "went": "expired: time to live",
            "prefetch": "75.0 % of 80 pages used",
            "processes": "1 hung",
            "hottest": "35.0 % of stores found the page there",
            "integrity": "1 stale locations",
        }.items():
            expect(page.locator(f"#{panel}")).to_contain_text(text)
        page.locator("#served summary").click()
        expect(page.locator("#served details table")).to_contain_text("10,000")


def test_tenant_and_window_are_in_the_address(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser) as page:
        _open(page, service)
        expect(page.locator("#tenant option")).to_have_count(3, timeout=SOON_MS)
        page.locator("#tenant").select_option("blue")
        page.locator("#window").select_option("86400")
        assert page.url.endswith("?tenant=blue&window=86400")
        expect(page.locator("#processes")).to_contain_text("gpu-b")
        expect(page.locator("#processes")).not_to_contain_text("gpu-a-0123")
        page.reload()
        expect(page.locator("#tenant")).to_have_value("blue")
        expect(page.locator("#window")).to_have_value("86400")


def test_refusals_are_told_apart_and_say_what_they_are(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser) as page:
        _open(page, service, "?tenant=red")
        for words in ("no space on the medium", "quota of the tenant", "mode: off or read"):
            expect(page.locator("#went")).to_contain_text(words, timeout=SOON_MS)


def test_a_tenant_that_nobody_knows_is_said_to_be_one(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser) as page:
        _open(page, service, "?tenant=nosuch")
        stranger = page.locator("#stranger")
        expect(stranger).to_contain_text("nosuch", timeout=SOON_MS)
        expect(stranger).to_contain_text("Known: blue, red.")
        expect(page.locator("#empty")).to_be_hidden()
        _assert_accessible(page)
        page.get_by_role("button", name="Show all tenants").click()
        expect(page.locator("#tiles li")).to_have_count(6)
        expect(stranger).to_be_hidden()
        assert "nosuch" not in page.url


def test_a_window_that_cannot_be_chosen_is_as_none(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser) as page:
        _open(page, service, "?window=banana")
        expect(page.locator("#tiles li")).to_have_count(6, timeout=SOON_MS)
        expect(page.locator("#window")).to_have_value("3600")


def test_what_was_refused_is_not_asked_again(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser, expected="422") as page:
        _open(page, service, f"?tenant={'x' * 300}")
        banner = page.locator("#banner")
        expect(banner).to_contain_text("refused", timeout=SOON_MS)
        expect(banner).not_to_contain_text("Asking again")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.fast_forward(10 * POLL_MS)
        assert asked == []


def test_a_check_of_some_media_only_is_shown_as_such(
    browser: Browser, shared_server: Server, service: Service, reporter: Reporter
) -> None:
    part = checks.Part(time.time(), clean=True, found={}, repaired=0)
    with Redis(shared_server.url) as redis:
        redis.run(checks.keep(reporter.tag, {b"here0000": part}, [b"here0000", b"there000"], 1.0))
    with _page(browser) as page:
        _open(page, service)
        integrity = page.locator("#integrity")
        expect(integrity).to_contain_text("partly checked", timeout=SOON_MS)
        expect(integrity).to_contain_text("1 of 2 media never looked at")


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_of_a_chart_is_cut_off(
    browser: Browser, service: Service, reporter: Reporter, width: int
) -> None:
    with _page(browser, width) as page:
        _open(page, service, "?tenant=red")
        expect(page.locator("#bytes .chart")).to_be_visible(timeout=SOON_MS)
        assert page.evaluate(CUT_OFF) == []


def test_tables_fit_a_narrow_screen(browser: Browser, service: Service, reporter: Reporter) -> None:
    with _page(browser, 390) as page:
        _open(page, service, "?tenant=red")
        expect(page.locator("#processes table").first).to_be_visible(timeout=SOON_MS)
        for panel in ("processes", "space", "latency", "integrity", "hottest"):
            assert page.evaluate(HIDDEN_PX, f"#{panel} .body .scroll") == 0, panel


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(
    browser: Browser, service: Service, reporter: Reporter, width: int, scheme: str
) -> None:
    with _page(browser, width, scheme) as page:
        _open(page, service)
        expect(page.locator("#tiles li")).to_have_count(6, timeout=SOON_MS)
        for summary in page.locator("summary:visible").all():
            summary.click()
        _assert_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_redis_that_does_not_answer_shows_as_such_and_so_does_its_return(
    browser: Browser, own_server: Server
) -> None:
    service = Service(own_server.url).start()
    try:
        with Redis(own_server.url) as redis, _page(browser, expected="503") as page:
            reporter = Reporter(redis)
            reporter.beat()
            reporter.report(COUNTERS)
            _open(page, service)
            expect(page.locator("#tiles li")).to_have_count(6, timeout=SOON_MS)
            own_server.kill()
            _next_poll(page)
            banner = page.locator("#banner")
            expect(banner).to_contain_text("Redis does not answer", timeout=SOON_MS)
            expect(page.locator("#updated")).to_contain_text("Stale")
            expect(page.locator("#announce")).to_contain_text("Redis does not answer")
            _assert_accessible(page)
            own_server.start()
            eventually(lambda: service.get("/v1/overview")[0] == 200)
            _next_poll(page)
            expect(banner).to_be_hidden(timeout=SOON_MS)
            expect(page.locator("#announce")).to_contain_text("live again")
    finally:
        service.stop()


def test_nobody_there_and_then_no_manager_either(browser: Browser, own_server: Server) -> None:
    service = Service(own_server.url).start()
    with _page(browser, expected="ERR_CONNECTION_REFUSED") as page:
        try:
            _open(page, service)
            expect(page.locator("#empty")).to_be_visible(timeout=SOON_MS)
            expect(page.locator("#empty-code")).to_contain_text(service.url)
            _assert_accessible(page)
        finally:
            service.stop()
        _next_poll(page)
        banner = page.locator("#banner")
        expect(banner).to_contain_text("This manager does not answer", timeout=SOON_MS)
        expect(banner).to_contain_text("since")


def test_a_token_is_asked_for_and_kept_out_of_the_address(
    browser: Browser, shared_server: Server, reporter: Reporter
) -> None:
    environment = {"KVMANAGER_TOKENS": f"admin red {TOKEN};router * 0123456789abcdef-router"}
    service = Service(shared_server.url, environment=environment).start()
    try:
        with _page(browser, expected="Failed to load resource") as page:
            _open(page, service)
            prompt = page.locator("#prompt")
            expect(prompt).to_be_visible(timeout=SOON_MS)
            _assert_accessible(page)
            for wrong, told in (
                ("nobody's token", "not know"),
                ("0123456789abcdef-router", "role"),
            ):
                page.get_by_label("Token", exact=True).fill(wrong)
                page.get_by_role("button", name="Show figures").click()
                expect(page.locator("#token-error")).to_contain_text(told)
            page.get_by_label("Token", exact=True).fill(TOKEN)
            page.keyboard.press("Enter")
            expect(page.locator("#tiles li")).to_have_count(6, timeout=SOON_MS)
            expect(page.locator("#tenant option")).to_have_count(2)
            expect(page.locator("#processes")).not_to_contain_text("gpu-b")
            assert TOKEN not in page.url
            page.get_by_role("button", name="Forget token").click()
            expect(prompt).to_be_visible()
            assert TOKEN not in page.content()
    finally:
        service.stop()


def test_a_paused_page_asks_nothing(browser: Browser, service: Service, reporter: Reporter) -> None:
    with _page(browser) as page:
        _open(page, service)
        expect(page.locator("#tiles li")).to_have_count(6, timeout=SOON_MS)
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#updated")).to_contain_text("Paused")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.clock.fast_forward(10 * POLL_MS)
        assert asked == []
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("#updated")).to_contain_text("Live")
        assert len(asked) == 1


def test_its_files_allow_nothing_from_elsewhere(service: Service) -> None:
    import http.client

    for path in ("/", "/dashboard/app.js", "/dashboard/style.css"):
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        policy = response.getheader("content-security-policy") or ""
        assert (response.status, "default-src 'none'" in policy) == (200, True)
        assert "unsafe" not in policy
        assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
        connection.request("GET", path, headers={"if-none-match": response.getheader("etag") or ""})
        assert connection.getresponse().status == 304
        connection.close()
    assert service.get("/dashboard/../app.py")[0] == 404


def test_figures_and_curves_come_without_a_reload(
    browser: Browser, service: Service, reporter: Reporter
) -> None:
    with _page(browser) as page:
        _open(page, service, "?tenant=red")
        tiles = page.locator("#tiles")
        expect(tiles).to_contain_text("150 of 200 read", timeout=SOON_MS)
        page.locator("#misses summary").click()
        page.locator("#misses summary").focus()
        expect(page.locator("#hottest")).to_contain_text("Qwen3-32B", timeout=SOON_MS)
        expect(page.locator("#bytes .chart")).to_be_visible(timeout=SOON_MS)
        expect(page.locator("#misses summary")).to_be_focused()
        expect(page.locator("#misses details")).to_have_attribute("open", "")
        reporter.report({"get.pages": 1000, "get.hits": 1000})
        expect(tiles).to_contain_text("1,150 of 1,200 read", timeout=SOON_MS)
        expect(page.locator("#hottest")).to_contain_text("6868")
