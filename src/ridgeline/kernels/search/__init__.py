"""Search kernels: scan rows or codes, select the best tiles, rescore in float64; inverted lists; k-means.

Scores are float32, results are scores [Q, k] and row numbers int64 [Q, k]; kernels never wait for the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.search.inverted_lists import find_nearest_lists as find_nearest_lists
    from ridgeline.kernels.search.kmeans import assign_centres as assign_centres
    from ridgeline.kernels.search.kmeans import group_by_list as group_by_list
    from ridgeline.kernels.search.kmeans import sample_rows as sample_rows
    from ridgeline.kernels.search.kmeans import train_centres as train_centres
    from ridgeline.kernels.search.maxsim import MAXSIM_PART as MAXSIM_PART
    from ridgeline.kernels.search.maxsim import score_documents as score_documents
    from ridgeline.kernels.search.maxsim import score_pairs as score_pairs
    from ridgeline.kernels.search.one_query import can_search_by_sketch as can_search_by_sketch
    from ridgeline.kernels.search.one_query import can_search_one_query as can_search_one_query
    from ridgeline.kernels.search.one_query import can_search_one_query_in_lists as can_search_one_query_in_lists
    from ridgeline.kernels.search.one_query import search_lists_one_query as search_lists_one_query
    from ridgeline.kernels.search.one_query import search_rows_one_query as search_rows_one_query
    from ridgeline.kernels.search.one_query import search_sketch_one_query as search_sketch_one_query
    from ridgeline.kernels.search.product_codes import CODEBOOK_SIZE as CODEBOOK_SIZE
    from ridgeline.kernels.search.product_codes import decode_product as decode_product
    from ridgeline.kernels.search.product_codes import encode_product as encode_product
    from ridgeline.kernels.search.product_codes import train_codebooks as train_codebooks
    from ridgeline.kernels.search.queries import Rounding as Rounding
    from ridgeline.kernels.search.queries import copy_results as copy_results
    from ridgeline.kernels.search.queries import prepare_queries as prepare_queries
    from ridgeline.kernels.search.rescore import MAX_CANDIDATES as MAX_CANDIDATES
    from ridgeline.kernels.search.scalar_codes import build_sketch as build_sketch
    from ridgeline.kernels.search.scalar_codes import encode_scalar as encode_scalar
    from ridgeline.kernels.search.search import MIN_CANDIDATES as MIN_CANDIDATES
    from ridgeline.kernels.search.search import choose_candidate_count as choose_candidate_count
    from ridgeline.kernels.search.search import choose_rounding as choose_rounding
    from ridgeline.kernels.search.search import search_lists as search_lists
    from ridgeline.kernels.search.search import search_rows as search_rows
    from ridgeline.kernels.search.search import search_rows_batch as search_rows_batch
    from ridgeline.kernels.search.top_k import select_best as select_best

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "inverted_lists": ["find_nearest_lists"],
        "kmeans": ["assign_centres", "group_by_list", "sample_rows", "train_centres"],
        "maxsim": ["MAXSIM_PART", "score_documents", "score_pairs"],
        "one_query": [
            "can_search_by_sketch",
            "can_search_one_query",
            "can_search_one_query_in_lists",
            "search_lists_one_query",
            "search_rows_one_query",
            "search_sketch_one_query",
        ],
        "product_codes": ["CODEBOOK_SIZE", "decode_product", "encode_product", "train_codebooks"],
        "queries": ["Rounding", "copy_results", "prepare_queries"],
        "rescore": ["MAX_CANDIDATES"],
        "scalar_codes": ["build_sketch", "encode_scalar"],
        "search": [
            "MIN_CANDIDATES",
            "choose_candidate_count",
            "choose_rounding",
            "search_lists",
            "search_rows",
            "search_rows_batch",
        ],
        "top_k": ["select_best"],
    },
)
