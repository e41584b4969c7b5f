"""Specs in FAISS's syntax: valid ones are parsed, others are explained."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.search.spec import Spec, choose_spec, parse_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("Flat", Spec("Flat")),
        ("sq8", Spec("SQ8")),
        ("IVF1024,Flat", Spec("Flat", 1024)),
        ("IVF1024 , SQ8", Spec("SQ8", 1024)),
        ("IVF1024,PQ48", Spec("PQ", 1024, 48)),
        ("IVF16,PQ4,Refine(SQ8)", Spec("PQ", 16, 4, "SQ8")),
        ("SQ8,refine(flat)", Spec("SQ8", refine="Flat")),
        ("Auto", None),
    ],
)
def test_a_spec_survives_formatting_and_parsing(text: str, spec: Spec | None):
    assert parse_spec(text) == spec
    if spec is not None:
        assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Flt", "'Flt'"),
        ("", "empty"),
        ("IVF0,Flat", "'IVF0'"),
        ("IVF99999999,Flat", "'IVF99999999'"),
        ("IVF16", "IVF16,Flat"),
        ("IVF16,", "''"),
        ("PQ8", "IVF1024,PQ8"),
        ("IVF16,PQ0", "'PQ0'"),
        ("Flat,Refine(PQ8)", r"'Refine\(PQ8\)'"),
        ("Flat,SQ8", "'SQ8'"),
        ("IVF16,Flat,Auto", "'Auto'"),
        ("NSG32", "'NSG32'"),
        ("Refine(Flat)", r"'Refine\(Flat\)'"),
    ],
)
def test_a_bad_spec_names_the_part_and_the_cure(text: str, part: str):
    with pytest.raises(InputError, match=part) as error:
        parse_spec(text)
    assert str(error.value).endswith(".")


def test_auto_is_exact_for_small_sizes():
    assert choose_spec(200_000) == Spec("Flat")
    assert choose_spec(1_000_000) == Spec("Flat", lists=2048)
