"""The report: pages that lead from the papers to tables, methods and single runs, and need nothing else."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hetfl.errors import HetflError
from hetfl.experiments.plan import Params, Workspace
from hetfl.figures.catalogue import names
from hetfl.files import atomic_folder, read_json, write_text
from hetfl.ledger.lines import Ledger, Line, ledger
from hetfl.ledger.page import counts, title_of
from hetfl.methods import METHODS
from hetfl.report.formats import render_csv, render_latex
from hetfl.report.shown import filled, show_bytes, show_count
from hetfl.report.table import build_table
from hetfl.site.costs import Operations, cost_data
from hetfl.site.drawing import inline_svg
from hetfl.site.methods import certificates, method_view, rst, sources
from hetfl.site.runs import Runs
from hetfl.site.tables import Rows, Table, table_view
from hetfl.tables.catalogue import PAPER_TABLES
from hetfl.tables.notation import PAPERS
from hetfl.tables.records import Compacts
from hetfl.tables.verdict import NOISE
from hetfl.tracking.mlflow_links import mlflow_links

TEMPLATES = Path(__file__).parent / "templates"
NAVIGATION = {
    "index.html": "Overview",
    "methods/index.html": "Methods",
    "runs/index.html": "Runs",
    "costs.html": "Cost in time",
    "figures.html": "Figures",
    "reading.html": "How to read",
}


def build_site(workspace: Workspace, params: Params | None = None, methods: Collection[str] = tuple(METHODS)) -> Path:
    """Write the folder ``report/`` anew from what the other stages left.

    Every ``<name>.json`` below ``tables/`` has a page, and so has every table of a paper, with the printed numbers
    alone where nothing is run. Every record that a table names and that is here has a page, and every method.

    Args:
        workspace: the checkout.
        params: its settings; None: only tables that are there, without the ledger.
        methods: those that have a page.

    Returns:
        The path of the first page.

    Raises:
        HetflError: a JSON file in the tables folder is not a table, or a record is damaged.
    """
    compacts = Compacts(workspace, params) if params else None
    runs = Runs(workspace, mlflow_links(workspace.root))
    tables = {table["table"]: table for table in map(_read_table, sorted(workspace.tables.rglob("*.json")))}
    book = ledger(workspace, params) if params else None
    if params:
        for name in PAPER_TABLES.keys() - tables:
            spec = PAPER_TABLES[name](params)
            tables[name] = filled(build_table(spec, workspace.runs, workspace.evaluations, compacts))
    rows = {name: Rows(table, runs, compacts) for name, table in tables.items()}
    with atomic_folder(workspace.report) as folder:
        _Site(workspace, folder, tables, rows, runs, book, compacts).write(methods)
    return workspace.report / "index.html"


class _Site:
    """The pages while they are written."""

    def __init__(
        self,
        workspace: Workspace,
        folder: Path,
        tables: Mapping[str, Table],
        rows: Mapping[str, Rows],
        runs: Runs,
        book: Ledger | None,
        compacts: Compacts | None,
    ) -> None:
        self.workspace, self.folder, self.tables, self.rows = workspace, folder, tables, rows
        self.runs, self.book, self.compacts = runs, book, compacts
        self.environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals |= {"navigation": [*NAVIGATION.items()], "noise": NOISE}
        self.environment.filters |= {"json": _json, "rst": rst, "count": show_count, "bytes": show_bytes}
        self.environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]

    def page(self, path: str, template: str, **content: Any) -> None:
        """Write a page; templates find the site's root in ``root``."""
        root = "../" * (len(PurePosixPath(path).parts) - 1)
        text = self.environment.get_template(f"{template}.html.jinja").render(root=root, here=path, **content)
        write_text(self.folder / path, text)

    def write(self, named: Collection[str]) -> None:
        """Write everything; ``named`` are the methods that have a page."""
        self.environment.globals["documented"] = named
        views = {name: table_view(table, self.runs, self.rows[name]) for name, table in self.tables.items()}
        for name, view in views.items():
            self.page(f"tables/{name}.html", "table", table=view)
            write_text(self.folder / "tables" / f"{name}.csv", render_csv(self.tables[name]))
            write_text(self.folder / "tables" / f"{name}.tex", render_latex(self.tables[name]))
        shown_in: dict[str, list[str]] = {}
        for name, table in self.tables.items():
            for path in {source["run"] for cell in table["cells"] for source in cell["provenance"]}:
                shown_in.setdefault(path, []).append(name)
        pages = self.runs.pages()
        for path, view in pages.items():
            content = {key: value for key, value in view.items() if key != "curves"}
            self.page(path, "run", curves_of=view["curves"], shown_in=shown_in[view["record"].path], **content)
        self.page("runs/index.html", "runs", runs=pages)
        methods = [*self.methods(named, views)]
        for method in methods:
            self.page(f"methods/{method['name']}.html", "method", method=method)
        self.page("methods/index.html", "methods", methods=methods)
        for name, text in sources({file for method in methods for file in method["files"]}).items():
            self.page(f"source/{name}.html", "source", name=name, text=text)
        both = {name: (table, self.rows[name]) for name, table in self.tables.items()}
        costs = cost_data(both, self.runs, Operations(self.workspace, self.compacts))
        self.page("costs.html", "costs", costs=costs)
        self.page("figures.html", "figures", **self.figures())
        self.page("reading.html", "reading")
        self.page("index.html", "index", papers=self.papers(), groups=self.groups(views), methods=methods)
        for name in ("style.css", "site.js"):
            write_text(self.folder / "assets" / name, (TEMPLATES / name).read_text())
        if pages or costs:
            write_text(self.folder / "assets" / "vega.js", _vega(self.workspace.scratch))

    def methods(self, named: Collection[str], views: Mapping[str, Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
        """Some methods by title."""
        lines: dict[str, list[dict[str, Any]]] = {}
        for line in self.book.lines if self.book else ():
            lines.setdefault(line.method, []).append(asdict(line) | {"says": line.says} | self.titles(line))
        cells: dict[str, list[dict[str, Any]]] = {}
        for name, view in views.items():
            for row in view["rows"] if name.partition("-")[0] not in PAPERS else ():
                for cell in filter(None, row["cells"]):
                    if cell["has_run"]:
                        place = {"table": name, "title": view["title"], "row": row["title"], "id": cell["id"]}
                        text = cell["number"] + (f" ± {cell['std']}" if cell["std"] else "")
                        cells.setdefault(row["method"], []).append(place | {"column": cell["column"], "text": text})
        certified = certificates(self.workspace.root / "docs" / "certificates.md")
        for name in sorted(named, key=lambda name: METHODS[name].title.lower()):
            certificate = certified.get(METHODS[name].title, {})
            yield method_view(name, self.runs, cells.get(name, []), lines.get(name, []), certificate)

    def titles(self, line: Line) -> dict[str, str]:
        """The titles of a line's row and column."""
        titles = self.book.titles[line.table] if self.book else {"rows": {}, "columns": {}}
        return {"row_title": titles["rows"][line.row], "column_title": titles["columns"][line.column]}

    def papers(self) -> list[dict[str, Any]]:
        """The papers' totals by verdict, and those of all together."""
        if self.book is None:
            return []
        lines = self.book.lines
        found = []
        for paper in PAPERS:
            own = [line for line in lines if line.paper == paper]
            found.append({"name": paper, "title": title_of(paper), "total": len(own), "counts": counts(own)})
        return [*found, {"name": "", "title": "All", "total": len(lines), "counts": counts(lines)}]

    def groups(self, views: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The tables: our own experiments, then each paper's."""
        told = {name: [line for line in self.book.lines if line.table == name] for name in views} if self.book else {}

        def tally(name: str, view: Mapping[str, Any]) -> str:
            if told.get(name):
                some = counts(told[name])
                parts = [f"{count} {verdict}" for verdict, count in some.items() if count]
                return f"{len(told[name])} printed: {', '.join(parts)}"
            done = f"{view['done']} of {view['total']} cells {view['made']}"
            return ", ".join([done, *(f"{count} {status}" for status, count in view["verdicts"])])

        def group(id: str, title: str, note: str, chosen: Iterable[str]) -> dict[str, Any]:
            tables = [(name, views[name]["title"], tally(name, views[name])) for name in chosen]
            return {"id": id, "title": title, "note": note, "tables": tables}

        ours = [name for name in views if name.partition("-")[0] not in PAPERS]
        digits = [name for name in ours if name.startswith("digits")]
        other = [name for name in ours if name not in digits]
        note = (
            "Digits and tiny models. They show that the pipeline works, and are never compared with printed numbers."
        )
        groups = [group("digits", "Embedded default", note, digits)]
        groups += [group("own", "Experiments on real images", "With smaller settings than the papers’.", other)]
        for paper in PAPERS:
            own = sorted((name for name in views if name.partition("-")[0] == paper), key=_by_number)
            groups.append(group(paper, title_of(paper), "", own))
        return [some for some in groups if some["tables"]]

    def figures(self) -> dict[str, Any]:
        """The drawings of partitions, and the papers' figures that are there."""
        folder = self.workspace.figures

        def drawn(wanted: Iterable[str]) -> list[dict[str, Any]]:
            there = [(name, folder / name / f"{name}.svg") for name in wanted]
            return [{"name": name, "svg": inline_svg(path, name, name)} for name, path in there if path.exists()]

        shown = {"distributions": drawn(names(of_runs=False)), "results": drawn(names(of_runs=True))}
        return {"partitions": _partitions(self.tables.values(), self.workspace.partitions), **shown}


def _by_number(name: str) -> tuple[int, str]:
    number = name.partition("-table-")[2].partition("-")[0]
    return int(number) if number.isdigit() else 99, name


def _read_table(path: Path) -> dict[str, Any]:
    table = read_json(path)
    if not isinstance(table, dict) or not {"table", "title", "columns", "rows", "cells"} <= set(table):
        raise HetflError(f"{path}: is not a table (table, title, columns, rows and cells are needed); move it away")
    return filled(table)


def _partitions(tables: Iterable[Table], folder: Path) -> list[dict[str, Any]]:
    """Per data set, the heat maps of the first seed of each split that a table names."""
    found: dict[str, dict[str, Markup]] = {}
    for table in tables:
        for place in table["provenance"].get("partitions", {}):
            dataset, _, partition = place.partition("/")
            split, _, seed = partition.rpartition("-s")
            path = folder / dataset / partition / "samples.svg"
            if seed == str(min(table["seeds"], default="")) and path.exists():
                title = table["columns"].get(split, split)
                maps = found.setdefault(dataset, {})
                maps.setdefault(partition, inline_svg(path, f"{dataset}, {title}", f"{dataset}-{partition}"))
    return [{"dataset": dataset, "maps": list(maps.values())} for dataset, maps in found.items()]


def _vega(scratch: Path) -> str:
    """Vega-Lite with all that it needs, for pages without a network; bundling takes seconds, so it is kept."""
    kept = scratch / f"vega-{version('vl-convert-python')}.js"
    if not kept.exists():
        from vl_convert import javascript_bundle

        bundle = javascript_bundle("window.vegaEmbed = vegaEmbed;")
        write_text(kept, f"(() => {{{bundle}}})();\n")
    return kept.read_text()


def _json(content: Any) -> Markup:
    """Data of a page's script; no text in it can end the element."""
    return Markup(json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))
