"""Suspects for Label Studio, FiftyOne, cleanlab and Spotlight; decisions back from the first two.

The files that come back are as those tools write them: Label Studio's JSON and JSON-MIN exports,
and the CSV of FiftyOne's CSVDatasetExporter (lists as "a,b", None as an empty cell).
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from exempla import fix_labels
from exempla.errors import ExemplaError
from exempla.review import ReviewedFile, Suspect, read_review, write_review
from exempla.review.folder import item_of
from exempla.review.integrations import export_review_items, import_decisions
from exempla.review.log import DecisionLog, RowDecision
from tests.review.case import make_folder

TOOLS = ("label-studio", "fiftyone", "cleanlab", "spotlight")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.fixture
def written(folder: Path) -> dict[str, Path]:
    return export_review_items(read_review(folder), folder, TOOLS)


def states(folder: Path) -> dict[int, tuple[str, str | None]]:
    log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    try:
        return {state.row: (state.action, state.label) for state in log.states()}
    finally:
        log.close()


def annotated(tasks: list[dict], answers: dict[int, object]) -> list[dict]:
    """The tasks as Label Studio exports them, with these answers by the tasks' place."""
    out = []
    for place, task in enumerate(tasks):
        answer = answers.get(place)
        annotations = []
        if answer is not None:
            prediction = task["predictions"][0]["result"][0]
            result = [] if answer == "skip" else [{**prediction, "value": {"choices": [answer]}}]
            annotations = [
                {"id": 900 + place, "completed_by": 1, "result": result, "lead_time": 4.2,
                 "was_cancelled": answer == "skip", "ground_truth": False,
                 "created_at": "2026-03-09T22:16:08.728353Z", "task": place + 1}
            ]  # fmt: skip
        out.append({"id": place + 1, "data": task["data"], "annotations": annotations,
                    "predictions": [place + 50], "drafts": [], "meta": {}, "project": 83,
                    "total_annotations": len(annotations)})  # fmt: skip
    return out


def test_tasks_carry_the_suggestion_with_its_score(written: dict[str, Path], folder: Path) -> None:
    tasks = json.loads(written["label-studio"].read_text())
    review = read_review(folder)
    assert len(tasks) == len(review.suspects) == 12
    for task, suspect in zip(tasks, review.suspects, strict=True):
        (prediction,) = task["predictions"]
        assert prediction["score"] == pytest.approx(suspect.probability, abs=1e-6)
        assert prediction["model_version"].startswith("exempla ")
        (result,) = prediction["result"]
        assert result["value"] == {"choices": [suspect.suggested]}
        assert task["data"]["row"] == suspect.row
        assert "message" in task["data"]["text"]


def test_the_interface_fits_the_tasks(written: dict[str, Path]) -> None:
    root = ElementTree.parse(written["label-studio"].with_suffix(".xml")).getroot()
    (choices,) = root.iter("Choices")
    (result,) = json.loads(written["label-studio"].read_text())[0]["predictions"][0]["result"]
    assert (choices.get("name"), choices.get("toName")) == (result["from_name"], result["to_name"])
    assert root.find(f"*[@name='{result['to_name']}']") is not None
    assert [c.get("value") for c in choices] == ["ham", "spam", "news"]


def test_annotations_come_back_as_decisions(written: dict[str, Path], folder: Path) -> None:
    tasks = json.loads(written["label-studio"].read_text())
    given = [task["data"]["given"] for task in tasks]
    back = folder / "project-83.json"
    answers = {0: given[0], 1: "news", 2: "skip"}
    back.write_text(json.dumps(annotated(tasks, answers)))
    found = import_decisions(read_review(folder), back)
    assert (found.written, found.known, found.kept) == (3, 0, ())
    rows = [task["data"]["row"] for task in tasks]
    wanted = {rows[0]: ("keep", None), rows[1]: ("relabel", "news"), rows[2]: ("skip", None)}
    assert states(folder) == wanted
    assert import_decisions(read_review(folder), back).known == 3
    assert states(folder) == wanted


def test_json_min_comes_back_too(written: dict[str, Path], folder: Path) -> None:
    tasks = json.loads(written["label-studio"].read_text())
    flat = [
        {**task["data"], "id": place, "annotator": 1, "annotation_id": place, "lead_time": 1.0,
         **({"label": "news"} if place == 4 else {})}
        for place, task in enumerate(tasks)
    ]  # fmt: skip
    (folder / "min.json").write_text(json.dumps(flat))
    assert import_decisions(read_review(folder), folder / "min.json").written == 1
    assert states(folder) == {tasks[4]["data"]["row"]: ("relabel", "news")}


def test_unknown_labels_and_rows_are_named_and_nothing_is_written(
    written: dict[str, Path], folder: Path
) -> None:
    tasks = annotated(json.loads(written["label-studio"].read_text()), {0: "news", 1: "eggs"})
    tasks[2]["data"]["exempla_item"] = 77777
    tasks[2]["annotations"] = tasks[0]["annotations"]
    (folder / "back.json").write_text(json.dumps(tasks))
    with pytest.raises(ExemplaError, match="'eggs' of row 3 is not one of the labels; item 77777"):
        import_decisions(read_review(folder), folder / "back.json")
    assert states(folder) == {}


def test_annotators_who_differ_are_named(written: dict[str, Path], folder: Path) -> None:
    tasks = annotated(json.loads(written["label-studio"].read_text()), {0: "news"})
    other = json.loads(json.dumps(tasks[0]["annotations"][0]))
    other["result"][0]["value"]["choices"] = ["ham"]
    tasks[0]["annotations"].append(other)
    (folder / "back.json").write_text(json.dumps(tasks))
    with pytest.raises(ExemplaError, match="task 1 has annotations that differ"):
        import_decisions(read_review(folder), folder / "back.json")


def test_a_decision_of_the_page_stays(written: dict[str, Path], folder: Path) -> None:
    review = read_review(folder)
    row = review.suspects[0].row
    log = DecisionLog(folder / "decisions.sqlite", review.key)
    log.decide(RowDecision(row, "remove", note="a copy"), seen=0, once="from-the-page")
    log.close()
    tasks = annotated(json.loads(written["label-studio"].read_text()), {0: "news", 1: "news"})
    (folder / "back.json").write_text(json.dumps(tasks))
    found = import_decisions(review, folder / "back.json")
    assert found.written == 1
    assert found.kept == (f"row {row}",)
    assert states(folder)[row] == ("remove", None)


def fiftyone_back(folder: Path, samples: list[dict[str, str]]) -> Path:
    """As CSVDatasetExporter writes it."""
    path = folder / "labels.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
        writer.writerow(["exempla_item", "label", "tags"])
        for sample in samples:
            writer.writerow([sample["exempla_item"], sample.get("label", ""), sample["tags"]])
    return path


def test_fiftyone_gets_samples_with_paths_of_their_own(written: dict[str, Path]) -> None:
    with written["fiftyone"].open(newline="") as file:
        samples = list(csv.DictReader(file))
    assert len({sample["filepath"] for sample in samples}) == len(samples) == 12
    assert all(Path(sample["filepath"]).is_absolute() for sample in samples)
    assert all(sample["label"] == "" for sample in samples)


def test_labels_and_tags_come_back_from_fiftyone(written: dict[str, Path], folder: Path) -> None:
    with written["fiftyone"].open(newline="") as file:
        samples = [{**sample, "tags": ""} for sample in csv.DictReader(file)]
    samples[0] |= {"label": "news"}
    samples[1] |= {"label": samples[1]["given"]}
    samples[2] |= {"tags": "reviewed,remove"}
    samples[3] |= {"tags": "validation"}
    found = import_decisions(read_review(folder), fiftyone_back(folder, samples))
    assert found.written == 3
    assert list(states(folder).values()) == [("relabel", "news"), ("keep", None), ("remove", None)]
    samples[5] |= {"tags": "keep,remove"}
    with pytest.raises(ExemplaError, match="line 7 is tagged keep and remove"):
        import_decisions(read_review(folder), fiftyone_back(folder, samples))


def test_cleanlab_and_spotlight_have_their_own_names(written: dict[str, Path]) -> None:
    with written["cleanlab"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "row", "is_label_issue", "label_score", "given_label", "predicted_label",
    ]  # fmt: skip
    assert {row["is_label_issue"] for row in rows} <= {"True", "False"}
    scores = [float(row["label_score"]) for row in rows]
    assert scores == sorted(scores)
    issues = json.loads(written["spotlight"].read_text())
    names = {"title", "rows", "severity", "columns", "description"}
    assert all(set(issue) == names for issue in issues)
    assert {issue["severity"] for issue in issues} <= {"low", "medium", "high"}
    assert sorted(row for issue in issues for row in issue["rows"]) == list(range(0, 36, 3))


def test_numbers_and_parts_go_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,350\n2,20\n")
    number = Suspect(0, "350", "35", 0.9, 0.0, kind="number", expected=34.0, spread=3.0)
    source = ReviewedFile(tmp_path / "a.csv", "csv", label="y")
    folder = tmp_path / "numbers"
    write_review(folder, [number], source=source, classes=[])
    paths = export_review_items(read_review(folder), folder, ["label-studio"])
    tasks = json.loads(paths["label-studio"].read_text())
    assert tasks[0]["predictions"][0]["result"][0]["value"] == {"number": 35.0}
    assert "<Number" in paths["label-studio"].with_suffix(".xml").read_text()
    back = annotated(tasks, {0: "35"})
    back[0]["annotations"][0]["result"][0]["value"] = {"number": 35}
    (tmp_path / "back.json").write_text(json.dumps(back))
    assert import_decisions(read_review(folder), tmp_path / "back.json").written == 1
    assert states(folder) == {0: ("relabel", "35")}

    folder = tmp_path / "parts"
    parts = [
        Suspect(1, "absent", "present", 0.8, 0.0, kind="part", part=name) for name in ("sun", "wet")
    ]
    write_review(folder, parts, source=source, classes=["absent", "present"])
    paths = export_review_items(read_review(folder), folder, ["fiftyone", "cleanlab"])
    with paths["fiftyone"].open(newline="") as file:
        samples = [{**sample, "tags": ""} for sample in csv.DictReader(file)]
    samples[1] |= {"label": "present"}
    import_decisions(read_review(folder), fiftyone_back(folder, samples))
    assert states(folder) == {item_of(1, "wet"): ("relabel", "present")}
    assert "part" in paths["cleanlab"].read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "", "neither a Label Studio export"),
        ("a.json", "{}", "not a list of tasks"),
        ("a.json", "[{}]", "task 0 has no exempla_item"),
        ("a.json", "[", "cannot be read as JSON"),
        ("a.csv", "label\nspam\n", "lacks the column exempla_item"),
        ("a.csv", "exempla_item,label\nx,spam\n", "line 2 has no exempla_item"),
    ],
)
def test_other_files_are_refused(folder: Path, name: str, text: str, said: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ExemplaError, match=said):
        import_decisions(read_review(folder), folder / name)


def test_deeply_nested_json_gets_a_sentence(tmp_path):
    folder = make_folder(tmp_path, 3)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ExemplaError, match="nested too deeply"):
        import_decisions(read_review(folder), tmp_path / "deep.json")


def test_a_file_that_exempla_did_not_write_is_not_replaced(folder: Path) -> None:
    (folder / "cleanlab.csv").write_text("mine")
    with pytest.raises(ExemplaError, match=r"already holds cleanlab\.csv, which exempla did not"):
        export_review_items(read_review(folder), folder, TOOLS)
    assert (folder / "cleanlab.csv").read_text() == "mine"
    assert not (folder / "fiftyone.csv").exists()
    export_review_items(read_review(folder), folder, TOOLS, force=True)
    paths = export_review_items(read_review(folder), folder, TOOLS)  # its own: replaced
    assert paths["cleanlab"].read_text().startswith("row,")


def test_a_file_beside_the_tasks_is_not_replaced(tmp_path):
    X, y = load_iris(return_X_y=True)
    fixes = fix_labels(LogisticRegression(max_iter=500), (X, y), k=3, progress=False)
    own = tmp_path / "tasks.xml"
    own.write_text("<mine/>")
    with pytest.raises(ExemplaError, match=r"tasks\.xml exists and would be replaced"):
        fixes.export(tmp_path / "tasks.json", "label-studio")
    assert own.read_text() == "<mine/>"
    assert not (tmp_path / "tasks.json").exists()
    own.unlink()
    for _ in range(2):  # what exempla wrote may be written again
        fixes.export(tmp_path / "tasks.json", "label-studio")
