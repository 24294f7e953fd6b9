"""`comastre report` from outside: the terminal, tables and figures."""

import csv
import hashlib
import json
import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path
from statistics import fmean

import matplotlib
import pytest
from made_runs import make_joint, make_run
from PIL import Image
from rich.console import Console

from comastre.cli import main as cli
from comastre.report.figures import _STYLE, figures_of, write_figures
from comastre.report.tables import Table, as_csv, as_latex, as_markdown, escaped, write_tables
from comastre.report.terminal import show, sparkline
from comastre.report.write import read_groups


def test_the_command_writes_the_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run")
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", "run"])
    said = capsys.readouterr().out
    assert not stop.value.code
    assert said.endswith("The report is run/report.html\n")
    assert "67 %" in said and "40.0" in said
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    said = capsys.readouterr()
    assert stop.value.code == 1
    assert said.err.count("\n") == 1 and "it has no config.yaml" in said.err
    assert not (tmp_path / "page.html").exists()


def test_sparklines() -> None:
    assert sparkline([0.0, 50.0, 100.0, None, 99.0]) == "▁▅█ █"
    assert sparkline([0.0, 100.0], unicode=False) == "_@"


def test_the_terminal_shows_unfinished_runs_and_the_ceiling(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", (), method="finetune"), make_joint(tmp_path / "joint")]
    screen = StringIO()
    show(read_groups(runs), "paper", Console(file=screen, width=100))
    assert "joint training (ceiling)" in screen.getvalue()
    assert "fine-tuning was stopped in step 1 after 100 iterations" in screen.getvalue()
    assert "▅▅▄" in screen.getvalue()


def test_tables_in_three_formats(tmp_path: Path) -> None:
    groups = read_groups([make_run(tmp_path / "a"), make_joint(tmp_path / "joint")])
    written = write_tables(groups, "paper", tmp_path / "tables")
    assert {file.name for file in written} == {
        f"{name}.{kind}" for name in ("scores", "classes", "errors", "recall", "later") for kind in ("csv", "md", "tex")
    }
    with (tmp_path / "tables" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["base"] for row in rows[:3]] == ["60.0", "50.0", "40.0"]
    assert rows[0]["inc"] == "" and rows[2]["avg"] != ""
    assert rows[3]["run"] == "joint training"


def test_files_of_proposals_hold_the_runs_that_propose(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", method="finetune", proposals=False)]
    mixed = read_groups(runs)
    write_tables(mixed, "paper", tmp_path / "tables")
    for name in ("recall", "errors", "later"):
        with (tmp_path / "tables" / f"{name}.csv").open() as file:
            assert {row["run"] for row in csv.DictReader(file)} == {"CoMasTRe"}
        assert "; without fine-tuning: no masks are proposed" in (tmp_path / "tables" / f"{name}.md").read_text()
    write_figures(mixed, "paper", tmp_path / "figures")
    for name in ("recall", "errors"):
        figure = (tmp_path / "figures" / f"{name}.svg").read_text()
        assert "CoMasTRe" in figure and "fine-tuning" not in figure
    assert "fine-tuning" in (tmp_path / "figures" / "scores.svg").read_text()
    alone = read_groups(runs[1:])
    assert {file.stem for file in write_tables(alone, "paper", tmp_path / "t")} == {"scores", "classes"}
    assert {"errors", "recall"}.isdisjoint(file.stem for file in write_figures(alone, "paper", tmp_path / "f"))
    screen = StringIO()
    show(mixed, "paper", Console(file=screen, width=100))
    said = [line for line in screen.getvalue().splitlines() if "proposes no masks" in line]
    assert len(said) == 1 and said[0].startswith("Fine-tuning labels pixels")


def test_tables_escape_what_their_format_reads() -> None:
    table = Table("t", "50 % of a_b", ("class", "IoU"), (("r&d|x", 12.34), ("y", None)))
    assert as_csv(table) == "class,IoU\nr&d|x,12.34\ny,\n"
    assert r"| r&d\|x | 12.3 |" in as_markdown(table)
    latex = as_latex(table)
    assert r"r\&d\textbar{}x & 12.3 \\" in latex and r"\caption{50 \% of a\_b}" in latex
    assert r"\begin{tabular}{lr}" in latex and latex.index(r"\toprule") < latex.index(r"\midrule")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("s > α", r"s \textgreater{} $\alpha$"),  # a bare > is printed as another sign
        ("<b>|x", r"\textless{}b\textgreater{}\textbar{}x"),
        ("β = 2, γ → 0", r"$\beta$ = 2, $\gamma$ $\rightarrow$ 0"),
        ("Δ×2 ≤ ω", r"$\Delta$$\times$2 $\leq$ $\omega$"),
        ("41.2 ± 0.8", r"41.2 $\pm$ 0.8"),
        ("Café – Zürich", "Café -- Zürich"),  # which pdflatex takes as they are
        ("[red]", "{[}red]"),  # after \\ it would be a length
        ("*", "{*}"),
    ],
)
def test_latex_shows_what_is_written(text: str, latex: str) -> None:
    assert escaped(text) == latex


def test_every_greek_letter_is_a_formula() -> None:
    for character in map(chr, range(ord("α"), ord("ω") + 1)):
        assert escaped(character).startswith("$") and escaped(character).isascii(), character


def test_a_spreadsheet_computes_nothing() -> None:
    table = Table("classes", "All", ("class", "=1+1"), (("=HYPERLINK(0)", -1.5), ("+x", None), ("-y", 2.0), ("@z", 3)))
    assert as_csv(table) == "class,'=1+1\n'=HYPERLINK(0),-1.5\n'+x,\n'-y,2.0\n'@z,3\n"


def renamed(run: Path, name: str) -> Path:
    """The run with a class of another name."""
    results = run / "results.json"
    results.write_text(results.read_text().replace('"cat"', json.dumps(name)))
    return run


@pytest.mark.parametrize("name", ["$x", "$\\frac{$", "a_$b^2$", "\\alpha", "[/red]"])
def test_a_class_may_be_called_like_a_formula(tmp_path: Path, name: str) -> None:
    groups = read_groups([renamed(make_run(tmp_path / "[red]", (60.0, 50.0)), name)])
    with matplotlib.rc_context(_STYLE):
        figures = figures_of(groups[0], "paper")
        figures["classes"].savefig(tmp_path / "classes.svg")
    assert name in "".join(ElementTree.parse(tmp_path / "classes.svg").getroot().itertext())
    show(groups, "paper", Console(file=StringIO()))


def test_names_in_the_terminal_are_no_markup(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("[red]", "[bold", "\x1b[31m")]
    said = StringIO()
    show(read_groups(runs), "paper", Console(file=said, width=200))
    for name in ("[red]", "[bold", "\\x1b[31m"):
        assert f"CoMasTRe ({name})" in said.getvalue()


def test_figures_are_whole_pictures(tmp_path: Path) -> None:
    groups = read_groups([make_run(tmp_path / "a"), make_joint(tmp_path / "joint")])
    written = write_figures(groups, "paper", tmp_path / "figures")
    names = {"scores", "classes", "forgetting", "errors", "recall", "losses", "examples"}
    assert {file.name for file in written} == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf", "png")}
    for file in written:
        if file.suffix == ".pdf":
            assert file.read_bytes().startswith(b"%PDF-") and b"/Type3" not in file.read_bytes()
        elif file.suffix == ".svg":
            assert ElementTree.parse(file).getroot().tag.endswith("svg")
        else:
            with Image.open(file) as picture:
                assert len(picture.convert("L").getcolors() or range(300)) > 5  # more than an empty sheet


def test_the_figure_of_examples_names_the_colours_of_its_classes(tmp_path: Path) -> None:
    (group,) = read_groups([make_run(tmp_path / "a")])
    (legend,) = figures_of(group, "paper")["examples"].legends
    examples = group.scored[0].run.examples
    # The truth shows a cat, which the last prediction takes for a cow.
    assert {text.get_text() for text in legend.get_texts()} == {"cat", "cow"}
    colours = dict(examples.labels)
    for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True):
        assert patch.get_facecolor()[:3] == pytest.approx([channel / 255 for channel in colours[text.get_text()]])


def test_groups_do_not_overwrite_each_others_files(tmp_path: Path) -> None:
    groups = read_groups([make_run(tmp_path / "a"), make_run(tmp_path / "b", setting="2-2")])
    names = {file.name for file in write_tables(groups, "paper", tmp_path / "tables")}
    assert {"1-scores.csv", "2-scores.csv"} <= names


def test_the_reference_table_is_the_papers() -> None:
    package = Path(cli.__file__).parents[1] / "report" / "paper.json"
    tables = json.loads(package.read_text())
    # Of all numbers of the paper's tables, as they were typed off and compared with its source.
    golden = "93598707ea230399efb76ccb4e0ec4ac2ef4881b8910bad64c90cffde750f971"
    assert hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest() == golden


@pytest.mark.parametrize(("setting", "num_base"), [("19-1", 20), ("15-5", 16), ("15-1", 16)])
def test_the_papers_tables_agree_with_each_other(setting: str, num_base: int) -> None:
    tables = json.loads((Path(cli.__file__).parents[1] / "report" / "paper.json").read_text())
    ious = list(tables["voc_per_class"][setting].values())  # background first, then in learning order
    means = {"base": fmean(ious[:num_base]), "inc": fmean(ious[num_base:]), "all": fmean(ious)}
    row = tables["voc"]["CoMasTRe"][setting]
    assert len(ious) == 21
    assert means == pytest.approx({name: row[name] for name in means}, abs=0.02)  # of IoUs with one decimal
