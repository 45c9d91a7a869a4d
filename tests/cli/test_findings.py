"""What a run says of its classes and of abstaining, in lines."""

from vcc_infuse.cli.findings import findings, measured_on

CUT = {"cut": 0.62, "answered": 227, "coverage": 0.81, "error": 0.05, "error_low": 0.026, "error_high": 0.087}
TEST = {"evaluated_on": "test", "evaluated_images": 1280, "error": 0.25}


def row(name, error, labels=15):
    wrong = round(40 * error)
    return {"class": name, "labels": labels, "test_images": 40, "error": error, "answers": 40,
            "taken_for": "dog" if wrong else None, "taken_for_images": wrong}  # fmt: skip


def test_the_worst_classes_come_first_then_advice_then_the_cut():
    table = [row("cat", 0.3), row("dog", 0.0), row("a monkey", 0.975, 2), {**row("owl", 0.0), "error": None}]
    cuts = [{**CUT, "suggested": True}, {**CUT, "cut": 0.8, "suggested": False}]
    assert findings({**TEST, "per_class": table, "advice": ["do this"], "abstain": cuts}) == [
        "class      error  labels  mostly taken for",
        "a monkey  97.5 %       2  dog (39 of 40)",
        "cat       30.0 %      15  dog (12 of 40)",
        "do this",
        "`predict --abstain 0.62`: 81 % answered, 5.0 % of the answers wrong (95 % interval 3 to 9 %), "
        "on 1,280 test images",
    ]


def test_many_classes_are_cut_short_and_none_is_shown_without_a_mistake():
    many = [row(f"c{i}", 0.5 + i / 100) for i in range(20)]
    lines = findings({**TEST, "per_class": many, "abstain": []})
    assert [line.split()[0] for line in lines] == ["class", "c19", "c18", "c17", "c16", "c15", "c14", "…"]
    assert lines[-1] == "… and 14 more, in summary.json and the report"
    found = {**TEST, "per_class": [], "abstain": [], "learning_curve": {"text": "more labels help"}}
    assert findings(found) == ["more labels help"]
    assert findings({**TEST, "error": 0.0, "per_class": [row("a", 0.0), row("b", 0.0)], "abstain": []}) == []


def test_without_a_test_set_labels_and_pseudo_labels_are_shown():
    table = [{"class": "cat", "labels": 15, "pseudo_label_share": 0.9}, {"class": "owl", "labels": 2}]
    lines = findings({"evaluated_on": None, "per_class": table, "abstain": []})
    assert lines == [
        "class  labels  share of pseudo labels",
        "owl         2  –",
        "cat        15  90.0 %",
        "no cut for `predict --abstain` can be suggested without test images",
    ]
    assert measured_on({"evaluated_on": None}) == ""
    assert measured_on({"evaluated_on": "validation", "evaluated_images": 6}) == "6 labeled images kept for validation"
