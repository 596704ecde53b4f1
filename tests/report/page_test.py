"""Pages in a browser: page_test.py LOCKSTEP MODEL [--pictures DIR]."""
import argparse
import copy
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from playwright.sync_api import sync_playwright

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x00<!--"
NUMBERS = {  # of a cell's line, and the place in the result that it must be
    r"worst element (\S+) of its budget": ("worst", "t1"),
    r"T2 (\S+) of its limit": ("worst", "t2"),
    r"introduced rms ([^\s,;]+)": ("introduced_rms",),
    r"total rms ([^\s,;]+)": ("total_rms",),
    r"; (\d+) of \d+ nodes": ("judged",),
    r"; \d+ of (\d+) nodes": ("expected",),
}


def short(x):
    """A number of a result as a page writes it."""
    if x is None:
        return "#"
    return x if isinstance(x, str) else f"{x:.3g}"


def value_at(point, path):
    for name in path:
        point = point[name]
    return point


def of_layers(result, layers):
    """The result as of a model with that many layers."""
    big = copy.deepcopy(result)
    rows = [p for p in result["points"] if p["layer"] is not None]
    had = max(p["layer"] for p in rows) + 1
    before = [p for p in result["points"][:4] if p["layer"] is None]
    after = [p for p in result["points"] if p["layer"] is None and p not in before]
    big["points"] = list(before)
    for layer in range(layers):
        for row in rows:
            if row["layer"] == layer % had:
                big["points"].append({**copy.deepcopy(row), "layer": layer})
    big["points"] += after
    big["scope"]["layers"] = layers
    big["findings"] += [{**f, "layer": f["layer"] + had * i}
                        for i in range(1, layers // had) for f in result["findings"]
                        if f["layer"] is not None]
    return big


class Pages(unittest.TestCase):
    lockstep = model = pictures = None

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.results = {}
        requests = ["--prompt", "ROMEO:\nWhat light", "--prompt", "To be, or not", "--max-new", "6"]
        for name, more in {
                "clean": [], "fault": ["--fault", "rope-position-off-by-one-in-decode@layer=3"],
                "nan": ["--fault", "last-page-tail-unmasked@layer=2"],
        }.items():
            cls.run_lockstep("run", "--model", cls.model, *requests, *more,
                             "--json", cls.folder / f"{name}.json",
                             "--html", cls.folder / f"{name}.html")
            cls.results[name] = json.loads((cls.folder / f"{name}.json").read_text())
        # Of digests alone nothing can be judged.
        journal = cls.folder / "a.journal"
        cls.run_lockstep("run", "--model", cls.model, *requests, "--trace", journal)
        cls.run_lockstep("judge", journal, "--model", cls.model,
                         "--json", cls.folder / "inconclusive.json",
                         "--html", cls.folder / "inconclusive.html")
        cls.results["inconclusive"] = json.loads((cls.folder / "inconclusive.json").read_text())
        cls.add("layers36", of_layers(cls.results["fault"], 36))
        hostile = copy.deepcopy(cls.results["fault"])
        hostile["story"] = hostile["requests"][0]["name"] = HOSTILE
        hostile["requests"][0]["token_texts"][0] = HOSTILE
        hostile["notes"] = [HOSTILE]
        hostile["provenance"][HOSTILE] = HOSTILE
        hostile["points"][5]["introduced_rms"] = "NaN"
        hostile["points"][6]["total_rms"] = "Infinity"
        cls.add("hostile", hostile)
        cls.browsing = sync_playwright().start()
        cls.browser = cls.browsing.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.browsing.stop()
        shutil.rmtree(cls.folder)

    @classmethod
    def run_lockstep(cls, *arguments):
        done = subprocess.run([cls.lockstep, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode in (0, 1) or "inconclusive" in done.stdout, done.stderr

    @classmethod
    def add(cls, name, result):
        (cls.folder / f"{name}.json").write_text(json.dumps(result))
        cls.run_lockstep("report", cls.folder / f"{name}.json",
                         "--html", cls.folder / f"{name}.html")
        cls.results[name] = result

    def open(self, name, **context):
        """The page of a result; what it asks for and complains of is in self.asked, .complaints."""
        page = self.browser.new_context(**context).new_page()
        self.addCleanup(page.context.close)
        self.asked, self.complaints = [], []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.accept())
        page.goto((self.folder / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
        return page

    def each(self):
        for name in self.results:
            with self.subTest(name):
                yield name, self.results[name]

    def test_asks_nobody_and_complains_of_nothing(self):
        for name, _ in self.each():
            self.open(name)
            self.assertEqual([u for u in self.asked if not u.startswith("data:")],
                             [(self.folder / f"{name}.html").as_uri()])
            self.assertEqual(self.complaints, [])

    def test_has_a_cell_for_each_place_and_frames_the_first_finding(self):
        for name, result in self.each():
            page = self.open(name)
            cells = page.locator(".cell")
            self.assertEqual(cells.count(), len(result["points"]))
            framed = page.locator(".cell.first")
            if result["first"] is None:
                self.assertEqual(framed.count(), 0)
                continue
            self.assertEqual(framed.count(), 1)
            place = result["points"][int(framed.get_attribute("data-place"))]
            for key in ("layer", "point"):
                self.assertEqual(place[key], result["first"][key])

    def test_says_the_numbers_of_the_result(self):
        for name, result in self.each():
            page = self.open(name)
            lines = page.eval_on_selector_all(
                ".cell", "all => all.map(c => [+c.dataset.place, c.title, c.ariaLabel])")
            found = 0
            for i, title, label in lines:
                self.assertEqual(title, label)
                for pattern, path in NUMBERS.items():
                    said = re.search(pattern, title)
                    if said:
                        self.assertEqual(said[1], short(value_at(result["points"][i], path)), title)
                        found += 1
            there = [value_at(point, path) for point in result["points"]
                     for path in NUMBERS.values()]
            self.assertEqual(found, len(there) - there.count(None))
            self.assertGreaterEqual(found, 2 * len(lines))
            rows = page.eval_on_selector_all(
                "#places tbody tr", "all => all.map(r => [...r.cells].map(c => c.textContent))")
            self.assertEqual(len(rows), len(result["points"]))
            for row, point in zip(rows, result["points"]):
                wanted = [value_at(point, path) for path in
                          [("worst", "t1"), ("worst", "t2"), ("introduced_rms",),
                           ("propagated_rms",), ("total_rms",)]]
                self.assertEqual(row[3:8], [short(x) for x in wanted])

    def test_holds_the_result_as_data(self):
        for name, result in self.each():
            page = self.open(name)
            data = page.locator("#result").text_content()
            self.assertNotIn("<", data)
            held = json.loads(data)
            if name != "hostile":  # whose zero byte and order of keys are its own
                self.assertEqual(held, result)
            self.assertEqual(page.locator("#story").text_content().replace("\ufffd", "\x00"),
                             result["story"])

    def test_shows_wrong_ops(self):
        result = self.results["fault"]
        page = self.open("fault")
        wrong = [p for p in result["points"] if p["errors"]]
        self.assertEqual(page.locator("article.wrong").count(), len(wrong))
        for i, point in enumerate(wrong):
            article = page.locator("article.wrong").nth(i)
            rows = article.locator(".list tbody tr")
            self.assertEqual(rows.count(), len(point["errors"]["worst"]))
            heads = article.locator(".strips .max").all_text_contents()[:-1]
            self.assertEqual(heads, [short(b["budgets"])
                                     for b in point["errors"]["by_head"]["buckets"]])
            bars = article.locator(".bar").count()
            self.assertEqual(bars, sum(n > 0 for n in point["errors"]["histogram"]))

    def test_says_the_same_without_a_program(self):
        for name, _ in self.each():
            texts = [self.open(name, java_script_enabled=on).locator("body").text_content()
                     for on in (True, False)]
            self.assertEqual(*texts)

    def test_filters_without_a_program(self):
        page = self.open("fault", java_script_enabled=False)
        page.locator("#places summary").click()
        rows = page.locator("#places tbody tr:visible")
        self.assertEqual(rows.count(), len(self.results["fault"]["points"]))
        page.locator("label[for=f-wrong]").click()
        self.assertEqual(rows.count(), page.locator("article.wrong").count())

    def test_is_used_by_keys(self):
        page = self.open("fault")
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('.map .cell')"):
                break
        at = "document.activeElement"
        self.assertTrue(page.evaluate(f"{at}.classList.contains('first')"))
        self.assertEqual(page.locator("#readout").text_content(),
                         page.evaluate(f"{at}.getAttribute('aria-label')"))
        before = page.evaluate(f"+{at}.dataset.place")
        page.keyboard.press("ArrowRight")
        self.assertEqual(page.evaluate(f"+{at}.dataset.place"), before + 1)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        self.assertTrue(page.url.endswith(f"#w{before}"))

    def test_fits_a_telephone(self):
        for name, _ in self.each():
            page = self.open(name, viewport={"width": 390, "height": 844})
            page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            wide = page.evaluate("document.documentElement.scrollWidth")
            self.assertLessEqual(wide, 390)

    def test_is_small(self):
        for name, _ in self.each():
            self.assertLess((self.folder / f"{name}.html").stat().st_size, 2_000_000)

    def test_is_seen_in_the_dark_and_printed(self):
        grounds = set()
        for scheme in ("light", "dark"):
            page = self.open("fault", color_scheme=scheme)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            if self.pictures:
                for name in self.results:
                    shot = self.open(name, color_scheme=scheme,
                                     viewport={"width": 1200, "height": 900})
                    shot.screenshot(path=f"{self.pictures}/{name}-{scheme}.png", full_page=True)
        self.assertEqual(len(grounds), 2)
        self.assertGreater(len(page.pdf()), 10_000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lockstep")
    parser.add_argument("model")
    parser.add_argument("--pictures")
    options = parser.parse_args()
    Pages.lockstep, Pages.model, Pages.pictures = options.lockstep, options.model, options.pictures
    unittest.main(argv=["page_test"], verbosity=1)
