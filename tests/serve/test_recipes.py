"""The recipes of docs/serve.md run against a server: those whose library is installed here, or in RIDGELINE_RECIPES.

RIDGELINE_RECIPES names a Python with langchain-openai, llama-index-embeddings-openai-like, haystack-ai and cohere;
NODE_PATH names a folder of Node modules with openai.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.embed.test_reranker import make
from tests.serve.conftest import run_server

import ridgeline

pytestmark = [pytest.mark.slow, pytest.mark.peer]

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
TEXTS = ["a text", "another"]
# recipe → the module it needs, what it computes
RECIPES = {
    "from openai": ("openai", "[vector]"),
    "from langchain_openai": ("langchain_openai", "vectors"),
    "from llama_index": ("llama_index.embeddings.openai_like", "vectors"),
    "from haystack": ("haystack", "[vector]"),
    "from huggingface_hub": ("huggingface_hub", "vectors"),
}


def read_recipe(start, language="python"):
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [recipe] = [block for block in blocks if block.startswith(start)]
    return recipe


def find_python(module):
    """A Python that has the module."""
    for python in filter(None, (sys.executable, os.environ.get("RIDGELINE_RECIPES"))):
        if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0:
            return python
    pytest.skip(f"{module} is not installed")


def run_recipe(command, client, folder):
    environment = {**os.environ, "no_proxy": "127.0.0.1", "HAYSTACK_TELEMETRY_ENABLED": "False"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return np.array(json.loads(done.stdout.splitlines()[-1]), np.float32)


@pytest.mark.parametrize("start", RECIPES)
def test_a_recipe_in_python_gets_the_vectors_of_the_library(client, embedder, tmp_path, start):
    module, result = RECIPES[start]
    recipe = read_recipe(start).replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
    script = f"{recipe}\nimport json\nprint(json.dumps([list(map(float, row)) for row in {result}]))\n"
    got = run_recipe([find_python(module), "-c", script], client, tmp_path)
    np.testing.assert_allclose(got, embedder.encode(TEXTS)[: len(got)], atol=1e-6)


def test_the_recipe_of_cohere_gets_the_scores_of_the_library(tmp_path):
    cross = make(tmp_path / "reranker")
    with ridgeline.Reranker(cross, device="cpu", dtype="float32") as reranker:
        expected = reranker.score("a query", TEXTS)
    with run_server([cross]) as (client, _):
        recipe = read_recipe("import cohere").replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
        script = f"{recipe}\nimport json\nprint(json.dumps([[r.index, r.relevance_score] for r in results]))\n"
        got = run_recipe([find_python("cohere"), "-c", script], client, tmp_path)
    assert got.shape == (1, 2)
    assert got[0, 0] == expected.argmax()
    np.testing.assert_allclose(got[0, 1], expected.max(), atol=1e-6)


def test_the_recipe_in_node_gets_the_vectors_of_the_library(client, embedder, tmp_path):
    node, modules = shutil.which("node"), os.environ.get("NODE_PATH")
    if node is None or not modules or not (Path(modules) / "openai").exists():
        pytest.skip("NODE_PATH names no folder with the npm package openai")
    recipe = read_recipe("import OpenAI", "js").replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
    (tmp_path / "node_modules").symlink_to(modules)
    script = tmp_path / "recipe.mjs"
    script.write_text(f"{recipe}\nconsole.log(JSON.stringify(answer.data.map((row) => row.embedding)));\n")
    np.testing.assert_allclose(run_recipe([node, str(script)], client, tmp_path), embedder.encode(TEXTS), atol=1e-6)
