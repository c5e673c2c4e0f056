"""The report: pages that lead from the papers to tables, methods and single runs, and need nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hetfl.experiments.plan import Params, Workspace, around, inner_projects, load_params
from hetfl.figures.catalogue import figures as known_figures
from hetfl.figures.catalogue import names
from hetfl.figures.style import NEAR_HUNDRED
from hetfl.files import atomic_folder, write_text
from hetfl.ledger.lines import Ledger, Line, ledger, order, printed_tables
from hetfl.ledger.page import counts, title_of
from hetfl.ledger.page import page as ledger_page
from hetfl.methods import METHODS
from hetfl.report.formats import render_csv, render_latex
from hetfl.report.make import CURVES
from hetfl.report.shown import DIVERGED, FAILED, RANDOM, filled, read_table, show_bytes, show_count, show_setting
from hetfl.report.table import build_table
from hetfl.site.costs import Operations, cost_data
from hetfl.site.drawing import drawn_from, inline_svg
from hetfl.site.methods import certificates, method_view, rst, sources
from hetfl.site.prose import prose
from hetfl.site.runs import Runs
from hetfl.site.tables import Rows, Table, table_view
from hetfl.tables.catalogue import PAPER_TABLES
from hetfl.tables.notation import PAPERS
from hetfl.tables.records import Records
from hetfl.tables.verdict import NOISE
from hetfl.tracking.mlflow_views import Links

TEMPLATES = Path(__file__).parent / "templates"
MARKS = {
    RANDOM: "random backbone weights",
    DIVERGED: "a run diverged, or one that it is compared with",
    FAILED: "a client failed in some rounds",
    "var": "variance between rounds",
}
"""What stands beside a number on the page of a method, in a few words."""
NAVIGATION = {
    "index.html": "Overview",
    "methods/index.html": "Methods",
    "runs/index.html": "Runs",
    "costs.html": "Cost in time",
    "figures.html": "Figures",
    "reading.html": "How to read",
}


LEDGER, CERTIFICATES = "ledger.html", "certificates.html"


@dataclass(frozen=True)
class Project:
    """A checkout, or a folder of it with a pipeline of its own, such as ``papers/``.

    Attributes:
        base: from the site's root to the project, such as ``../papers/``.
        records: its records, with its settings.
        tables: by name; every table of a paper is there, with the printed numbers alone where nothing is run.
        book: the ledger, where the project has all papers.
    """

    workspace: Workspace
    base: str
    records: Records
    runs: Runs
    tables: dict[str, Table]
    rows: dict[str, Rows]
    book: Ledger | None

    @classmethod
    def read(cls, workspace: Workspace, params: Params, base: str) -> Project:
        """Read a project's tables.

        Raises:
            HetflError: a JSON file in the tables folder is not a table, or a record is damaged.
        """
        records = Records(workspace, params)
        tables: dict[str, Table] = {
            table["table"]: table
            for table in map(filled, map(read_table, sorted(workspace.tables.rglob("[!.]*.json"))))
        }
        known = printed_tables(params)
        book = ledger(workspace, params) if {name.partition("-")[0] for name in known} == {*PAPERS} else None
        for name in known:
            if name not in tables and name in PAPER_TABLES:
                tables[name] = filled(build_table(PAPER_TABLES[name](params), records))
        runs = Runs(records, Links(workspace.root), base)
        rows = {name: Rows(table, runs, records) for name, table in tables.items()}
        return cls(workspace, base, records, runs, tables, rows, book)


def build_site(workspace: Workspace, params: Params, methods: Collection[str] = tuple(METHODS)) -> Path:
    """Write the folder ``report/`` anew from what the other stages left, here and in the projects inside.

    Every ``<name>.json`` below ``tables/`` has a page, and so has every table of a paper. Every record that a table
    names and that is here has a page, and every method.

    Args:
        workspace: the checkout.
        params: its settings.
        methods: those that have a page.

    Returns:
        The path of the first page.

    Raises:
        HetflError: a JSON file in a tables folder is not a table, or a record is damaged.
    """
    projects = [Project.read(workspace, params, "../")]
    for inner in inner_projects(workspace.root):
        place, name = Workspace(inner), inner.relative_to(workspace.root).as_posix()
        projects.append(Project.read(place, load_params(place.params), f"../{name}/"))
    with atomic_folder(workspace.report) as folder:
        _Site(workspace, folder, projects).write(methods)
    return workspace.report / "index.html"


class _Site:
    """The pages while they are written."""

    def __init__(self, workspace: Workspace, folder: Path, projects: Sequence[Project]) -> None:
        self.workspace, self.folder, self.projects = workspace, folder, projects
        self.lines = [line for project in projects if project.book for line in project.book.lines]
        self.environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.environment.globals |= {
            "navigation": [*NAVIGATION.items()],
            "noise": NOISE,
            "near_hundred": NEAR_HUNDRED,
            "marks": MARKS,
        }
        self.environment.filters |= {"json": _json, "rst": rst, "count": show_count, "bytes": show_bytes}
        self.environment.filters["setting"] = show_setting
        self.environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]

    def page(self, path: str, template: str, **content: Any) -> None:
        """Write a page; templates find the site's root in ``root``."""
        root = "../" * (len(PurePosixPath(path).parts) - 1)
        text = self.environment.get_template(f"{template}.html.jinja").render(root=root, here=path, **content)
        self.file(path, text)

    def file(self, path: str, text: str) -> None:
        """Write a file of the site, which replaces the older one as a whole."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())

    def prose(self, path: str, text: str, base: str) -> None:
        """Write a page from Markdown, whose links are relative to ``base``, seen from the site's root."""

        def link(target: str) -> str:
            table = re.fullmatch(r"tables/[^/]+/([^/]+)\.md", target)
            return f"tables/{table[1]}.html" if table else f"{base}{target}"

        heading, found = prose(text, link)
        self.page(path, "prose", heading=heading, text=found)

    def write(self, named: Collection[str]) -> None:
        """Write everything; ``named`` are the methods that have a page."""
        self.environment.globals["documented"] = named
        views: dict[str, dict[str, Any]] = {}
        pages: dict[str, dict[str, Any]] = {}
        shown_in: dict[str, list[str]] = {}
        for project in self.projects:
            for name, table in project.tables.items():
                views[name] = table_view(table, project.runs, project.rows[name])
                views[name] |= self._beside(project.workspace.tables / name, views[name])
                self.page(f"tables/{name}.html", "table", table=views[name])
                for suffix, render in (("csv", render_csv), ("tex", render_latex)):
                    self.file(f"tables/{name}.{suffix}", render(table))
                for path in {source["run"] for cell in table["cells"] for source in cell["provenance"]}:
                    shown_in.setdefault(path, []).append(name)
            pages |= project.runs.pages()
        for path, view in pages.items():
            content = {key: value for key, value in view.items() if key != "curves"}
            self.page(path, "run", curves_of=view["curves"], shown_in=shown_in[view["record"].path], **content)
        self.page("runs/index.html", "runs", runs=pages, diverged=DIVERGED)
        methods = [*self.methods(named, views)]
        for method in methods:
            self.page(f"methods/{method['name']}.html", "method", method=method)
        self.page("methods/index.html", "methods", methods=methods)
        for name, text in sources({file for method in methods for file in method["files"]}).items():
            self.page(f"source/{name}.html", "source", name=name, text=text)
        costs = []
        for project in self.projects:
            both = {name: (table, project.rows[name]) for name, table in project.tables.items()}
            costs += cost_data(both, project.runs, Operations(project.workspace, project.records))
        self.page("costs.html", "costs", costs=costs)
        self.page("figures.html", "figures", **self.figures())
        self.page("reading.html", "reading")
        for project in self.projects:
            if project.book:
                self.prose(LEDGER, ledger_page(project.book), project.base)
        self.page(
            "index.html",
            "index",
            papers=self.papers(),
            ledger=LEDGER,
            groups=self.groups(views),
            methods=methods,
        )
        for name in ("style.css", "site.js"):
            self.file(f"assets/{name}", (TEMPLATES / name).read_text())
        if pages or costs:
            self.file("assets/vega.js", _vega(self.workspace.scratch))

    def _beside(self, folder: Path, view: Mapping[str, Any]) -> dict[str, Any]:
        """What else lies in a table's folder: the curves as numbers, and drawn if the page has none of its own."""
        name, numbers = view["name"], folder / CURVES
        drawing = folder / f"{name}-curves.svg"
        if numbers.exists():
            self.file(f"tables/{name}-curves.csv", numbers.read_text())
        drawn = drawing.exists() and not view["curves"] and not view["compares"]
        title = f"{view['title']}, curves"
        return {"numbers": numbers.exists(), "drawn": inline_svg(drawing, title, name) if drawn else ""}

    def methods(self, named: Collection[str], views: Mapping[str, Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
        """Some methods by title."""
        lines: dict[str, list[dict[str, Any]]] = {}
        titles = {
            name: told for project in self.projects if project.book for name, told in project.book.titles.items()
        }
        for line in self.lines:
            of_table = titles[line.table]
            place = {"row_title": of_table["rows"][line.row], "column_title": of_table["columns"][line.column]}
            lines.setdefault(line.method, []).append(asdict(line) | {"says": line.says} | place)
        cells: dict[str, list[dict[str, Any]]] = {}
        for name, view in views.items():
            for row in view["rows"] if name.partition("-")[0] not in PAPERS else ():
                for cell in filter(None, row["cells"]):
                    if cell["has_run"]:
                        at = {"table": name, "title": view["title"], "row": row["title"], "id": cell["id"]}
                        sure = filter(None, ["" if cell["of_clients"] else cell["range"], cell["seeds"]])
                        beside = ", ".join(sure)
                        text = cell["number"] + (f" ± {cell['std']}" if cell["std"] else "")
                        text += re.sub(r" \[\d+\]", "", cell["marks"]) + (f" ({beside})" if beside else "")
                        cells.setdefault(row["method"], []).append(at | {"column": cell["column"], "text": text})
        found = [(record, project.runs.cd) for project in self.projects for record in project.runs.found.values()]
        homes = {record.path: cd for record, cd in found if record}
        records = [record for record, _ in found if record]
        root = around(self.workspace.root) or self.workspace.root
        compared = root / "docs" / "certificates.md"
        certified = certificates(compared)
        if certified:
            above = "../" * (1 + len(self.workspace.root.absolute().relative_to(root.absolute()).parts))
            self.prose(CERTIFICATES, compared.read_text(), f"{above}docs/")
        self.environment.globals["certificates"] = CERTIFICATES
        for name in sorted(named, key=lambda name: METHODS[name].title.lower()):
            certificate = certified.get(METHODS[name].title, {})
            page_of = method_view(name, records, cells.get(name, []), lines.get(name, []), certificate)
            yield page_of | {"cd": page_of["example"] and homes[page_of["example"].path]}

    def papers(self) -> list[dict[str, Any]]:
        """The papers' totals by verdict, and those of all together."""
        if not self.lines:
            return []
        lines, found = self.lines, []
        for paper in PAPERS:
            own = [line for line in lines if line.paper == paper]
            found.append({"name": paper, "title": title_of(paper), "total": len(own), "counts": counts(own)})
        return [*found, {"name": "", "title": "All", "total": len(lines), "counts": counts(lines)}]

    def groups(self, views: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The tables: our own experiments, then each paper's."""
        told: dict[str, list[Line]] = {}
        for line in self.lines:
            told.setdefault(line.table, []).append(line)

        def tally(name: str, view: Mapping[str, Any]) -> str:
            if name in told:
                some = counts(told[name])
                marked = some.pop("remarks")
                parts = [f"{count} {verdict}" for verdict, count in some.items() if count]
                parts += [f"{marked} remark{'s' * (marked > 1)}"] if marked else []
                return f"{len(told[name])} printed: {', '.join(parts)}"
            done = f"{view['done']} of {view['total']} numbers {view['made']}"
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
        smaller = "On real images, most with smaller settings than the papers’, and experiments of your own."
        groups += [group("own", "Other experiments", smaller, other)]
        for paper in PAPERS:
            own = sorted((name for name in views if name.partition("-")[0] == paper), key=order)
            groups.append(group(paper, title_of(paper), "", own))
        return [some for some in groups if some["tables"]]

    def figures(self) -> dict[str, Any]:
        """The drawings of partitions, and the papers' figures that are there."""
        known = [known_figures(project.records.params) for project in self.projects]
        titles = {name: name for name in names()} | {name: one.title for some in known for name, one in some.items()}

        def drawn(wanted: Iterable[str]) -> Iterator[dict[str, Any]]:
            for name, (project, figures) in product(wanted, zip(self.projects, known, strict=True)):
                path, title = project.workspace.figures / name / f"{name}.svg", titles[name]
                if path.exists():
                    behind = drawn_from(figures[name], project.records) if name in figures else []
                    drawing = inline_svg(path, title, name)
                    yield {"name": name, "title": title, "svg": drawing, "provenance": behind}

        partitions = [
            found
            for project in self.projects
            for found in _partitions(project.tables.values(), project.workspace.partitions)
        ]
        shown = {"distributions": [*drawn(names(of_runs=False))], "results": [*drawn(names(of_runs=True))]}
        return {"partitions": partitions, **shown}


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
