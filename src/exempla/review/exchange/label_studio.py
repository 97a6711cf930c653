"""Label Studio: one task a suspect with our suggestion as its prediction; annotations back.

Tasks follow "Import pre-annotated data into Label Studio" (data, predictions with model_version,
score and result), annotations "Label Studio JSON format of annotated tasks" (annotations with
result and was_cancelled) of Label Studio's guide; its JSON-MIN export is read as well. The score is
the probability that the given label is wrong: in the Data Manager, sort by it, the highest first.
Beside the tasks lies the labeling interface, `….xml`, to paste into the project's settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from exempla.atomic import write_text
from exempla.errors import ExemplaError
from exempla.review.exchange.items import Item
from exempla.version import __version__

__all__ = ["read_label_studio", "write_label_studio"]

CONTROL, ITEM = "label", "exempla_item"
"""The name of the control in the interface, and of the field that says which suspect a task is."""


def write_label_studio(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """Write the tasks, and the labeling interface beside them."""
    images = any(item.image for item in items)
    # a tag whose field a task lacks stops Label Studio: all tasks have the same ones
    shown = ["image"] * images + ["text"] * (not images or any(item.text for item in items))
    tasks = [_task(item, shown) for item in items]
    numbers = any(item.kind == "number" for item in items)
    write_text(path.with_suffix(".xml"), interface(classes, shown=shown, numbers=numbers))
    return write_text(path, json.dumps(tasks, indent=1, ensure_ascii=False) + "\n")


def interface(classes: Sequence[str], *, shown: Sequence[str], numbers: bool) -> str:
    """The labeling interface, in Label Studio's tags; `shown` are "image", "text" or both.

    >>> print(interface(["ham", "spam"], shown=["text"], numbers=False).splitlines()[3].strip())
    <Choices name="label" toName="text" choice="single-radio">
    """
    lines = ["<View>", '  <Header value="$exempla_question"/>']
    lines += [f'  <{name.capitalize()} name="{name}" value="${name}"/>' for name in shown]
    if numbers:
        lines.append(f'  <Number name="{CONTROL}" toName="{shown[0]}"/>')
    else:
        lines.append(f'  <Choices name="{CONTROL}" toName="{shown[0]}" choice="single-radio">')
        lines += [f"    <Choice value={quoteattr(name)}/>" for name in classes]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>"]) + "\n"


def _task(item: Item, shown: Sequence[str]) -> dict[str, Any]:
    kind, value = ("number", {"number": float(item.suggested)}) if item.kind == "number" else (
        "choices", {"choices": [item.suggested]}
    )  # fmt: skip
    data = {
        **{name: item.image if name == "image" else item.shown for name in shown},
        ITEM: item.item,
        "row": item.row,
        "given": item.given,
        "probability_wrong": round(item.probability, 6),
        "exempla_question": _question(item),
    }
    more = {"part": item.part, "expected": item.expected, "spread": item.spread, "id": item.id}
    data |= {name: value for name, value in more.items() if value not in (None, "")}
    result = {"id": f"item{item.item}", "from_name": CONTROL, "to_name": shown[0], "type": kind,
              "value": value}  # fmt: skip
    prediction = {
        "model_version": f"exempla {__version__}",
        "score": round(item.probability, 6),
        "result": [result],
    }
    return {"data": data, "predictions": [prediction]}


def _question(item: Item) -> str:
    what = f"{item.part!r} is given as {item.given}" if item.part else f"Given: {item.given}"
    return f"{what}. What is right?"


def read_label_studio(path: Path) -> list[tuple[int, str, str]]:
    """(item, "label" or "skip", label) of every annotated task; tasks without one are left out."""
    try:
        tasks = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ExemplaError(f"{path.name} cannot be read as JSON ({error}).") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ExemplaError(
            f"{path.name} is no list of tasks; export the project as JSON or JSON-MIN."
        )
    found, problems = [], []
    for number, task in enumerate(tasks):
        data = task.get("data", task)
        item = data.get(ITEM) if isinstance(data, dict) else None
        if not isinstance(item, int) or isinstance(item, bool):
            problems.append(f"task {task.get('id', number)} has no {ITEM}")
            continue
        try:
            answer = _annotated(task) if "annotations" in task else _flat(task)
        except ValueError as error:
            problems.append(f"task {task.get('id', number)} {error}")
            continue
        if answer is not None:
            found.append((item, *answer))
    if problems:
        raise ExemplaError(
            f"{path.name} was not taken over: {'; '.join(problems[:5])}"
            + (f" and {len(problems) - 5:,} more" if len(problems) > 5 else "")
            + ". Nothing was written."
        )
    return found


def _annotated(task: dict[str, Any]) -> tuple[str, str] | None:
    """What the task's annotations say; ValueError if they do not agree."""
    answers = set()
    for annotation in task["annotations"]:
        if annotation.get("was_cancelled"):
            answers.add(("skip", ""))
            continue
        for result in annotation.get("result", []):
            if result.get("from_name", CONTROL) == CONTROL:
                answers.add(("label", _value(result.get("value", {}))))
    if len(answers) > 1:
        answers.discard(("skip", ""))  # who skipped leaves it to the others
    if len(answers) > 1:
        said = ", ".join(sorted(repr(label) for _, label in answers))
        raise ValueError(f"has annotations that differ ({said})")
    return answers.pop() if answers else None


def _flat(task: dict[str, Any]) -> tuple[str, str] | None:
    """The same of a task in JSON-MIN, which has each control's value beside the data."""
    value = task.get(CONTROL)
    if value is None:
        return None
    if isinstance(value, dict):
        value = value.get("choices", value.get("number"))
    if isinstance(value, list):
        return "label", _value(value[0] if value and isinstance(value[0], dict) else
                               {"choices": value})  # fmt: skip
    return "label", _number(value) if isinstance(value, int | float) else str(value)


def _value(value: dict[str, Any]) -> str:
    if "number" in value:
        return _number(value["number"])
    chosen = value.get("choices")
    if isinstance(chosen, str):
        return chosen
    if not isinstance(chosen, list) or len(chosen) != 1:
        raise ValueError(f"has {0 if not chosen else len(chosen)} choices where one is needed")
    return str(chosen[0])


def _number(value: Any) -> str:
    return f"{float(value):.10g}"
