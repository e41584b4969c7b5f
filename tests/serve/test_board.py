"""The Grafana board shows metrics that the server has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.serve.conftest import TEXTS

BOARD = Path(__file__).parents[2] / "deploy" / "grafana-serve.json"


def test_every_metric_of_the_board_is_there_with_its_labels(client):
    client.post("/v1/embeddings", json={"model": "mini", "input": TEXTS})
    text = client.get("/metrics").text
    labels = {}
    for name, inner in re.findall(r"^(\w+)\{([^}]*)\}", text, re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", inner))
    expressions = [t["expr"] for panel in json.loads(BOARD.read_text())["panels"] for t in panel["targets"]]
    assert len(expressions) > 8
    for expression in expressions:
        for name in re.findall(r"ridgeline_serve_\w+", expression):
            if name != "ridgeline_serve_gpu_memory_bytes":  # there is no GPU here
                assert name in labels, name
                for by in re.findall(r"by \(([^)]*)\)", expression):
                    assert {label.strip() for label in by.split(",")} <= labels[name]
