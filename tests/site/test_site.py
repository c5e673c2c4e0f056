"""The report: what its pages say, and what they do in a browser."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote

import pytest
from record_factory import NO_CELLS, make_round, records_below, rewrite_rounds, rewrite_run
from table_factory import ROUNDS, ROWS, SPEC, cell_spec, make, pages, write_cell, write_experiment

from hetfl.errors import HetflError
from hetfl.experiments.plan import Workspace
from hetfl.figures.curves import accuracy_curves
from hetfl.files import read_json, write_json
from hetfl.ledger.lines import Ledger, Line
from hetfl.methods import METHODS
from hetfl.report.shown import best_cells, filled
from hetfl.report.table import write_table
from hetfl.schema import read_rounds
from hetfl.site.build import build_site
from hetfl.site.costs import Operations
from hetfl.site.methods import _described, _said, _settings, certificates, idea
from hetfl.site.prose import prose
from hetfl.site.tables import tied
from hetfl.tracking.mlflow_views import VIEW, view_key

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TABLE, PRINTED = "tables/digits-homogeneous.html", "tables/fedhpl-table-1.html"
RUN = "runs/digits-homogeneous/fedhpl/fedhpl/iid-s0.html"
NOTHING = {"elements": 0, "bytes": 0}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 27 runs, FedAvg's fine-tuned: our table, and a paper's of the same runs."""
    root = tmp_path_factory.mktemp("checkout")
    write_experiment(root)
    workspace = Workspace(root)
    for folder in (workspace.runs / "digits-homogeneous/fedavg/fedavg").iterdir():
        tuned = make_round(ROUNDS + 1, fine_tuning=True, up=NOTHING, down=NOTHING)
        rewrite_rounds(folder, [*read_rounds(folder), tuned])
    table = make(root)
    write_table(table, workspace.tables)
    other = SPEC.model_copy(update={"name": "fedhpl-table-1", "title": "Table 1 <b>", "note": ""})
    write_table(make(root, other, printed={"fedhpl": {"iid": 91.5}, "local": {"iid": 90.0}}), workspace.tables)
    accuracy_curves(table, records_below(root), root)
    drawing = workspace.partition("digits", "iid", 0) / "samples.svg"
    drawing.parent.mkdir(parents=True)
    shutil.copy(root / "digits-homogeneous-curves.svg", drawing)
    # FedAvg computes twice as much as FedHPL.
    operations = {"fedhpl": 1e9, "fedavg": 2e9, "local": 1e9}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Operations, "of", lambda self, record: operations[record.run.row])
        build_site(workspace, NO_CELLS, ("fedhpl", "fedavg", "fedprox"))
    return workspace.report


def test_pages_of_tables_runs_and_methods(report: Path) -> None:
    page = (report / PRINTED).read_text()
    assert "Table 1 &lt;b&gt;" in page
    assert "printed 91.5 (-0.5), match" in page and "printed 90.0 (-9.0), worse" in page
    ours = (report / TABLE).read_text()
    assert ours.index(SPEC.note) < ours.index('<table class="results"') and "d" * 64 in ours
    assert (report / "tables/digits-homogeneous.csv").read_text().startswith("row,column,status,value")
    run = (report / RUN).read_text()
    assert "<dd>1,634–1,700</dd>" in run
    assert "hetfl train digits-homogeneous --row fedhpl --split iid --seed 0" in run and "b" * 64 in run
    assert "<svg" in (report / "figures.html").read_text()
    method = (report / "methods/fedprox.html").read_text()
    assert re.search(r"<code>patience</code></th><td>null</td>", method)
    (line,) = re.findall(r'source/(fedprox\.html#L\d+)">fedprox\.py:\d+</a></dt><dd>F_k\(w\)', method)
    number = line.partition("#L")[2]
    assert re.search(rf'id="L{number}"[^\n]*objective', (report / "source/fedprox.html").read_text())


def test_links_resolve_and_nothing_is_loaded_from_elsewhere(report: Path) -> None:
    anchors: dict[Path, set[str]] = {}
    texts = {path: path.read_text() for path in report.rglob("*.html")}
    assert len(texts) > 27 + 2 + 3
    for path, text in texts.items():
        named = re.findall(r'\bid="([^"]+)"', text)
        assert len(named) == len(set(named)), path
        anchors[path] = set(named)
    for path, text in texts.items():
        assert not re.search(r'(?:src|href)="(?:https?:)?//', text), path
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            target, _, anchor = unquote(link).partition("#")
            if target.startswith("data:"):
                continue
            to = (path.parent / target).resolve() if target else path
            assert to.exists(), f"{path}: {link}"
            assert not anchor or anchor in anchors[to], f"{path}: {link}"


def test_ties_are_those_whose_intervals_meet() -> None:
    def cell(row: str, value: float, std: float | None) -> dict[str, Any]:
        return {"row": row, "column": "c", "status": "ours", "printed": None, "value": value, "std": std}

    # From the best down: within 2 * (0.5 + 0.375), not within 2 * (0.5 + 0.1), within 2 * (0.5 + 2).
    cells = [cell("best", 90, 0.5), cell("single", 88.3, None), cell("sure", 88.3, 0.1), cell("unsure", 85.0, 2.0)]
    rows = [one["row"] for one in cells]
    table = filled({"table": "t", "title": "T", "rows": rows, "columns": ["c"], "cells": cells})
    assert tied(table, best_cells(table)) == {("single", "c"), ("unsure", "c")}


def test_tables_with_nothing_but_what_the_interface_fixes(tmp_path: Path) -> None:
    """Rows and columns may be lists."""
    cell = {"row": "a", "column": "b", "printed": 12.0, "printed_std": None, "value": 12.0, "std": None}
    cell |= {"seeds": [], "best": None, "last": None, "status": "arithmetic", "provenance": []}
    table = {"table": "plain", "title": "Plain", "columns": ["b"], "rows": ["a"], "cells": [cell]}
    write_json(tmp_path / "plain.json", table)
    assert "printed 12.0, arithmetic" in pages(tmp_path)["tables/plain.html"]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "other.json", {"accuracy": 1})
    with pytest.raises(HetflError, match="is not a table, .*make it again or move it away"):
        pages(tmp_path)


def test_a_report_without_tables(tmp_path: Path) -> None:
    assert "No tables yet" in pages(tmp_path)["index.html"]


def test_costs_compare_rows_once_and_tell_of_runs_that_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Operations, "of", lambda self, record: 1e9)
    for row, column in (("fedhpl", "iid"), ("fedavg", "iid"), ("fedhpl", "dirichlet")):
        write_cell(tmp_path, row, column, 0)
    folder = tmp_path / "runs/digits-homogeneous/fedavg/fedavg/iid-s0"
    lines = [line.model_copy(update={"diverged": [0] * (line.round >= 3)}) for line in read_rounds(folder)]
    rewrite_rounds(folder, lines)
    iid = {row: cell_spec(row, "iid", seeds=[0]) for row in ("fedhpl", "fedavg")}
    entries: dict[str, Any] = {row: {"iid": cell, "again": cell} for row, cell in iid.items()}
    entries["fedhpl"]["dirichlet"] = cell_spec("fedhpl", "dirichlet", seeds=[0])
    columns = {"iid": "IID", "again": "The same", "dirichlet": "One row"}
    rows = {"fedhpl": "FedHPL", "fedavg": "FedAvg"}
    table = make(tmp_path, SPEC.model_copy(update={"rows": rows, "columns": columns, "entries": entries}))
    write_table(table, tmp_path / "tables")
    page = pages(tmp_path / "tables", tmp_path)["costs.html"]
    told = re.search(r'id="costs-data">(.*?)</script>', page)
    assert told is not None
    [one] = json.loads(told[1])
    [column] = one["columns"]
    found = {line["row"]: (line["diverged"], line["troubles"]) for line in column["lines"]}
    assert column["title"] == "IID"
    assert found == {"FedHPL": (None, []), "FedAvg": (3, ["diverged: seed 0 in round 3"])}


def test_costs_cut_no_seed_where_another_one_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operations, "of", lambda self, record: 1e9)
    for row in ("fedhpl", "fedavg"):
        for seed in (0, 1):
            write_cell(tmp_path, row, "iid", seed)
    folder = tmp_path / "runs/digits-homogeneous/fedhpl/fedhpl/iid-s1"
    rewrite_rounds(folder, read_rounds(folder)[:-2])
    entries = {row: {"iid": cell_spec(row, "iid", seeds=[0, 1])} for row in ("fedhpl", "fedavg")}
    rows = {"fedhpl": "FedHPL", "fedavg": "FedAvg"}
    table = make(tmp_path, SPEC.model_copy(update={"rows": rows, "columns": {"iid": "IID"}, "entries": entries}))
    write_table(table, tmp_path / "tables")
    told = re.search(r'id="costs-data">(.*?)</script>', pages(tmp_path / "tables", tmp_path)["costs.html"])
    lines = json.loads(told[1])[0]["columns"][0]["lines"]
    ends = [(line["row"], line["seed"], len(line["rounds"])) for line in lines]
    assert ends == [("FedHPL", 0, ROUNDS + 1), ("FedHPL", 1, ROUNDS - 1), ("FedAvg", None, ROUNDS + 1)]


def test_the_page_of_a_method_explains_the_marks_that_it_has(tmp_path: Path) -> None:
    for row in ROWS:
        write_cell(tmp_path, row, "iid", 0)
    folder = tmp_path / "runs/digits-homogeneous/fedhpl/fedhpl/iid-s0"
    rewrite_rounds(folder, [line.model_copy(update={"diverged": [0]}) for line in read_rounds(folder)])
    rewrite_run(folder, {"failed": 3})
    write_table(make(tmp_path), tmp_path / "tables")
    found = pages(tmp_path / "tables", tmp_path, ("fedavg", "fedhpl"))
    told = "FedHPL. §: a run diverged, or one that it is compared with; ¶: a client failed in some rounds</span>"
    assert told in found["methods/fedhpl.html"]
    assert "runs of FedAvg</span>" in found["methods/fedavg.html"]


def test_a_run_that_changed_since_its_table_has_no_page(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    write_table(make(tmp_path), tmp_path / "tables")
    path = tmp_path / "runs" / RUN.removeprefix("runs/").removesuffix(".html") / "run.json"
    write_json(path, read_json(path) | {"fingerprint": "0" * 64})
    found = pages(tmp_path / "tables", tmp_path)
    assert RUN not in found and RUN.replace("s0", "s1") in found
    assert "The records of 1 of the 27 runs behind these numbers are not in this checkout" in found[TABLE]


def test_a_table_without_records_has_the_curves_that_lie_beside_it(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    table = make(tmp_path)
    write_table(table, tmp_path / "tables")
    folder = tmp_path / "tables" / table["table"]
    accuracy_curves(table, records_below(tmp_path), folder)
    (folder / "curves.csv").write_text("row,column\n")
    assert "Accuracy by round</h2>" not in pages(tmp_path / "tables", tmp_path)[TABLE]
    shutil.rmtree(tmp_path / "runs")
    found = pages(tmp_path / "tables", tmp_path)
    assert "no page, and the curves are those that were drawn with them" in found[TABLE]
    assert "Accuracy by round</h2>" in found[TABLE] and f'aria-label="{table["title"]}, curves"' in found[TABLE]
    numbers = tmp_path / "tables/report/tables/digits-homogeneous-curves.csv"
    assert numbers.read_text() == "row,column\n"
    assert 'href="digits-homogeneous-curves.csv" download' in found[TABLE]


def test_the_list_of_runs_marks_those_that_diverged(tmp_path: Path) -> None:
    for row in ROWS:
        write_cell(tmp_path, row, "iid", 0)
    rewrite_run(tmp_path / "runs/digits-homogeneous/fedhpl/fedhpl/iid-s0", {"diverged": 2})
    write_table(make(tmp_path), tmp_path / "tables")
    assert pages(tmp_path / "tables", tmp_path)["runs/index.html"].count("diverged in round 2") == 1


def test_the_overview_counts_the_ledger_s_lines_of_the_papers_project(tmp_path: Path) -> None:
    """The papers are a project inside; its tables have pages here, which lead to its own records."""
    inner = Workspace(tmp_path / "papers")
    (inner.root / ".dvc").mkdir(parents=True)
    inner.params.write_text("")
    write_cell(inner.root, "fedavg", "iid", 0)
    cells = {"fedavg": {"iid": cell_spec("fedavg", "iid", seeds=[0])}}
    parts = {"rows": {"fedavg": "FedAvg"}, "columns": {"iid": "IID"}, "entries": cells}
    write_table(make(inner.root, SPEC.model_copy(update={"name": "fedhpl-table-1", **parts})), inner.tables)

    def line(table: str, **more: Any) -> Line:
        return Line(table.partition("-")[0], table, "fedavg", "iid", "90.0", "%", 90.0, None, method="fedavg", **more)

    tables = ["fedhpl-table-1", "fedtgp-table-1", "fgpt-table-1"]
    lines = [line(tables[0], verdict="match", ours="90.3"), line(tables[0], verdict="worse", ours="80.0")]
    lines += [line(tables[1], reason="data"), line(tables[2], verdict="counted", because="differs", doubts=("Odd.",))]
    titles = {"title": "A table", "blocks": [], "rows": {"fedavg": "FedAvg"}, "columns": {"iid": "IID"}}
    book = Ledger(lines, dict.fromkeys(tables, titles), {})
    params = NO_CELLS.model_copy()
    changes = {"ledger": lambda *_: book, "load_params": lambda _: params, "_vega": lambda _: "", "PAPER_TABLES": {}}
    changes["printed_tables"] = lambda given: tables if given is params else []
    with mock.patch.multiple("hetfl.site.build", **changes):
        page = build_site(Workspace(tmp_path), NO_CELLS, ["fedavg"])
    row = re.compile(r'<th scope="row">(?:<a href="#\w+">)?(\w+).*?</th>(.*?)</tr>', re.DOTALL)
    totals = {name: re.findall(r"<td>(.*?)</td>", rest) for name, rest in row.findall(page.read_text())}
    # Printed; match, better, worse, differs, in progress; counted, which agrees or differs; not run for want of
    # weights, data, hours; remarks.
    assert totals["FedHPL"] == ["2", "1", "", "1", "", "", "", "", "", "", "", ""]
    assert totals["FedTGP"] == ["1", "", "", "", "", "", "", "", "", "1", "", ""]
    assert totals["FGPT"] == ["1", "", "", "", "", "", "", "1", "", "", "", "1"]
    assert totals["All"] == ["4", "1", "", "1", "", "", "", "1", "", "1", "", "1"]
    assert 'href="ledger.html"' in page.read_text()
    told = (tmp_path / "report" / "ledger.html").read_text()
    assert '<h1 id="ledger">Ledger</h1>' in told and 'href="../papers/results/ledger.csv"' in told
    assert "<td>90.3</td>" in (page.parent / "methods/fedavg.html").read_text()
    for path in ("runs/digits-homogeneous/fedavg/fedavg/iid-s0.html", "methods/fedavg.html"):
        assert "hetfl --cd papers train digits-homogeneous --row fedavg" in (page.parent / path).read_text()
    record = re.search(r'href="(\S+run\.json)"', (page.parent / "tables/fedhpl-table-1.html").read_text())
    assert record and (page.parent / "tables" / record[1]).resolve() == inner.root / record[1].partition("papers/")[2]


def test_markdown_as_a_page_has_its_anchors_and_links_and_no_html_of_its_own() -> None:
    text = "# A *first* page\n\n## Of FedTGP (2024)\n\n| a | b |\n| --- | --: |\n| 1<br>2 | [x](y.md) |\n\n"
    title, html = prose(text + "[self](#a) [away](https://example.org) <b>bold</b>", lambda target: f"../{target}")
    assert title == "A first page" and '<h1 id="a-first-page">' in html and '<h2 id="of-fedtgp-2024">' in html
    assert "1<br>2" in html and 'href="../y.md"' in html and "&lt;b&gt;" in html
    assert 'href="#a"' in html and 'href="https://example.org"' in html


def test_a_figure_is_headed_by_what_it_shows_and_names_its_runs(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    drawing = workspace.figures / "digits-theorem" / "digits-theorem.svg"
    drawing.parent.mkdir(parents=True)
    drawing.write_text('<svg viewBox="0 0 1 1"></svg>')
    write_cell(tmp_path, "fedavg", "iid", 0)
    entries = [cell_spec("fedavg", "iid", seeds=[0, 1])]
    known = {"digits-theorem": SimpleNamespace(title="terms over the rounds", of_runs=True, entries=entries)}
    with mock.patch("hetfl.site.build.known_figures", lambda _: known):
        build_site(workspace, NO_CELLS, [])
    page = (workspace.report / "figures.html").read_text()
    assert '<h3 id="digits-theorem">Terms over the rounds</h3>' in page
    assert 'role="img" aria-label="terms over the rounds"' in page
    assert "fedavg/fedavg/iid-s0" in page and "iid-s1" not in page
    assert "d" * 64 in page and "abc123" in page


def test_pages_link_runs_and_comparisons_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_cell(tmp_path, "fedavg", "iid", 0)
    cells = {"fedavg": {"iid": cell_spec("fedavg", "iid", seeds=[0])}}
    parts = {"rows": {"fedavg": "FedAvg"}, "columns": {"iid": "IID"}, "entries": cells}
    table = make(tmp_path, SPEC.model_copy(update=parts))
    write_table(table, tmp_path / "tables")
    (tmp_path / "mlruns").mkdir()
    with closing(sqlite3.connect(tmp_path / "mlruns/mlflow.db")) as database, database:
        for columns in ("tags (key, value, run_uuid)", "runs (run_uuid, experiment_id, lifecycle_stage, start_time)"):
            database.execute(f"CREATE TABLE {columns}")
        database.execute("CREATE TABLE experiments (experiment_id, name, lifecycle_stage)")
        database.execute("CREATE TABLE experiment_tags (key, value, experiment_id)")
        fingerprint = table["cells"][0]["provenance"][0]["fingerprint"]
        database.execute("INSERT INTO tags VALUES ('fingerprint', ?, 'abc')", [fingerprint])
        database.execute("INSERT INTO runs VALUES ('abc', 7, 'active', 0)")
        database.execute("INSERT INTO experiments VALUES (7, 'digits-homogeneous', 'active')")
        database.execute("INSERT INTO experiment_tags VALUES (?, '', 7)", [f"{VIEW}{view_key('iid')}"])
    found = pages(tmp_path / "tables", tmp_path)
    assert "/#/experiments/7/runs/abc" in found[TABLE] and "/#/experiments/7/runs?viewStateShareKey" in found[TABLE]
    assert "/#/experiments/7/runs/abc" in found["runs/digits-homogeneous/fedavg/fedavg/iid-s0.html"]


def test_every_method_has_its_idea_in_three_sentences_and_a_certificate() -> None:
    told = certificates(Path("docs/certificates.md"))
    for name, cls in METHODS.items():
        assert cls.title in told, name
        assert idea(name).count(".") >= 3, f"{name}: the docstring of its file says too little"


def test_a_function_without_a_docstring_has_not_its_parents_equation() -> None:
    expected = {
        "objective": "What a client minimises on a batch: a scalar, pure.",
        "shares": "The parameter groups that travel and are averaged.",  # the contract has none
    }
    for name, words in expected.items():
        [node] = ast.parse(f"def {name}(self): ...").body
        assert isinstance(node, ast.FunctionDef)
        assert _said(node, METHODS["fedavg"]) == words


def test_every_setting_of_a_method_has_its_own_description() -> None:
    told = _described(METHODS["fedtgp"])
    assert told["pull"] == "weight lambda of the prototype loss."
    assert {*METHODS["fedtgp"].Settings.__annotations__} <= told.keys()
    record = SimpleNamespace(run=SimpleNamespace(settings={"rounds": 3}))
    shown = {line["name"]: line for line in _settings(METHODS["fedtgp"], [record])}  # type: ignore[list-item]
    # The record is older than all other settings.
    assert shown["rounds"]["values"] == ["3"] and shown["test_head"]["values"] == ["false"]


class Page:
    """A page in the browser, and everything that went wrong in it."""

    def __init__(self, page: Any, report: Path) -> None:
        self.page, self.report, self.problems = page, report, list[str]()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda told: self.problems.append(told.text))
        page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith((f"file://{self.report}/", "data:")):
            self.problems.append(f"request of {url}")

    def go(self, path: str) -> Any:
        """Open a page of the report."""
        self.page.goto(f"file://{self.report / path}")
        return self.page

    def texts(self, selector: str) -> list[str]:
        """The texts of what is visible."""
        return [found.text_content() or "" for found in self.page.locator(selector).all() if found.is_visible()]


@pytest.fixture(scope="module")
def browser(report: Path) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Page]:
    opened = Page(browser.new_page(viewport={"width": 1200, "height": 800}), report)
    yield opened
    assert opened.problems == []
    opened.page.close()


def test_sorting_filtering_and_pointing(page: Page) -> None:
    at = page.go(TABLE)

    def order() -> list[str]:
        return [text.removesuffix("pre-trained").strip() for text in page.texts(".results tbody th")]

    assert order() == ["FedHPL", "FedAvg & co_", "Local"]
    parameters = at.get_by_role("button", name="Up, a round")
    parameters.click()
    assert order() == ["FedAvg & co_", "FedHPL", "Local"]
    parameters.click()
    assert order() == ["Local", "FedHPL", "FedAvg & co_"]
    assert at.locator("[aria-sort=ascending]").count() == 1
    at.get_by_role("searchbox").fill("fed")
    assert order() == ["FedHPL", "FedAvg & co_"] and page.texts("form output") == ["2 of 3 rows"]
    at.get_by_role("searchbox").fill("")
    at.locator("#fedhpl--iid a").focus()
    (tip,) = page.texts("#tip")
    assert "seed 0: 90.00" in tip and "seed 2: 92.00" in tip and "commit abc123" in tip
    at.keyboard.press("Escape")
    assert page.texts("#tip") == []
    at.locator("#local--iid a").hover()
    assert "Local, IID" in page.texts("#tip")[0]


def test_a_printed_page_has_whole_tables(page: Page) -> None:
    at = page.go("methods/fedhpl.html")
    tall = "[...document.querySelectorAll('.scroll.tall')].some(part => part.scrollHeight > part.clientHeight)"
    assert at.evaluate(tall)
    at.emulate_media(media="print")
    assert not at.evaluate(tall)


def test_curves_have_a_line_and_a_label_for_each_row(page: Page) -> None:
    at = page.go(TABLE)
    assert at.locator(".panels svg").count() == 3
    assert {"FedHPL", "FedAvg & co_, fine-tuned", "Local"} <= set(page.texts(".panels svg text"))
    assert "fine-tuned after the last round" in page.texts(".curves .foot")[0]
    at.get_by_label("by bytes sent so far").check()
    at.wait_for_selector("text=Local (sends nothing)")
    assert "Accuracy, %" in page.texts(".panels svg text")
    # As if the best accuracy of this table were close to 100 %.
    at.evaluate("$('#near-hundred').textContent = JSON.stringify({ ...data('near-hundred'), start: 80 })")
    at.get_by_role("radio", name="by round").check()
    at.wait_for_selector("text=Accuracy, %, log scale of the errors")
    assert {"80", "90", "FedHPL", "Local"} <= set(page.texts(".panels svg text"))


def test_times_follow_what_the_user_picks(page: Page) -> None:
    at = page.go("costs.html")

    def pick(**values: float) -> dict[str, list[str]]:
        for name, value in values.items():
            at.locator(f"[name={name}]").fill(str(value))
        rows = (row.locator("th, td").all_inner_texts() for row in at.locator("#times tbody tr").all())
        return {name.split("\n")[0]: rest for name, *rest in rows}

    data = json.loads(at.locator("#costs-data").inner_text())
    told = data[0]["columns"][0]["lines"][0]
    assert told["row"] == "FedHPL" and told["operations"] == 1e9
    # Round 1 of FedHPL in 80 % or more? Its accuracies are 91 - 30 exp(-t) + 30 exp(-5).
    found = pick(target=85, up=0.016, down=0.016, latency=100, speed=1)
    # Reached in round 2. Operations: 2 x 1 s. Registration: 8 bytes up; round 1: 6400 up, round 2: 6000 up and 3200
    # down, at 2000 bytes a second. Messages: 4 x 0.1 s.
    seconds = 2 + (8 + 6400 + 6000 + 3200) / 2000 + 0.4
    assert found["FedHPL"][0] == f"{seconds:.3g} s" and found["FedHPL"][2] == "2"
    assert [*found][0] == "FedHPL" and found["Local"][0] == "not reached"
    assert pick(speed=1000)["FedHPL"][0] == f"{seconds - 1.998:.3g} s"


@pytest.mark.parametrize("path", ["index.html", TABLE, "methods/fedhpl.html", RUN, "costs.html", "runs/index.html"])
def test_pages_are_accessible_and_as_wide_as_a_phone(page: Page, path: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    at = page.go(path)
    at.wait_for_function(
        "document.querySelectorAll('[data-curves], #over-time-chart').length == 0 || "
        "document.querySelector('.vega-embed svg')"
    )
    found = Axe().run(at, options={"preload": False}).response["violations"]
    assert [(problem["id"], problem["nodes"][0]["html"]) for problem in found] == []
    at.set_viewport_size({"width": 390, "height": 800})
    assert at.evaluate("document.documentElement.scrollWidth") <= 390
    assert at.evaluate("[...document.querySelectorAll('table')].every(table => table.caption)")
