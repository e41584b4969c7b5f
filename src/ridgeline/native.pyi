"""
The CPU's hot loops, chosen for this CPU's instruction set at run time.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray
from typing_extensions import CapsuleType


def instruction_sets() -> list[str]:
    """
    Instruction sets that this build contains and this CPU can run, weakest first.
    """

def chosen_instruction_set() -> str:
    """
    The instruction set in use: the strongest one, or the one that RIDGELINE_ISA names.
    """

def spin(steps: int, seed: int = 1) -> int:
    """
    Run a busy loop of `steps` dependent steps and return its known result.
    """

def read(source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], isa: str = '') -> int:
    """Exclusive-or of the 64-bit words of `source` [bytes]."""

def write(target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], word: int, streaming: bool = False, isa: str = '') -> None:
    """Fill `target` [bytes] with a 64-bit word."""

def copy(target: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], streaming: bool = False, isa: str = '') -> None:
    """Copy `source` [bytes] to `target`; they must not overlap."""

def triad(target: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], a: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], scale: float, streaming: bool = False, isa: str = '') -> None:
    """target = a + scale * b [n]."""

def time_mix(mix: str, bytes: int, cpus: Sequence[int], passes: int = 1, repeats: int = 1, streaming: bool = False, isa: str = '') -> list[int]:
    """
    Nanoseconds per round of read | write | copy | triad, with one pinned thread per CPU (-1: not pinned) and `bytes` of memory for each thread.
    """

def resample(values: Annotated[NDArray, dict(device='cpu', writable=False)], times: Annotated[NDArray, dict(device='cpu', writable=False)], at: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')], mask: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')] | None, lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, at_lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, channels: Sequence[tuple[int, int, str]], outside: str, gap_float: float | None, gap_int: int | None, scale: Annotated[NDArray, dict(device='cpu', writable=False)] | None, shift: Annotated[NDArray, dict(device='cpu', writable=False)] | None, value_type: str, out_is_wide: bool, threads: int, check: bool = False, isa: str = '') -> int:
    """
    Interpolate values [B, S, D] at times [B, S] to the targets at [B, T], into out [B, T, D]; see ridgeline.resample. With `check` it returns the first trajectory whose stamps are unsorted, or -1.
    """

def first_unsorted(times: Annotated[NDArray, dict(device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> int:
    """
    The first trajectory with a stamp that is NaN or smaller than the stamp before it, or -1.
    """

def resample_arrays(values: object | None, times: object | None, at: object | None, out: object | None, check: bool) -> object:
    """
    Interpolate numpy arrays linearly, clamped at the ends: values [B, S, D] at times [B, S], read at `at` [B, T]. Returns [B, T, D], or None if the arguments need the general path.
    """

def resample_tensors(reader: TensorReader, values: object | None, times: object | None, at: object | None, out: object | None, check: bool) -> object:
    """As resample_arrays, for tensors in host memory."""

class Launch:
    """
    A compiled GPU kernel with its parameters prepared; call it with a stream and addresses.
    """

    def __init__(self, function: int, programs: int, threads: int, shared: int, parameters: Sequence[tuple[int, int, int]], library: str = 'libcuda.so.1', early: bool = False) -> None:
        """
        `parameters` in the kernel's order: (bytes, index of the address or -1, value if -1). early: the kernel may start before the previous kernel has ended, and waits for it by itself.
        """

    def __call__(self, stream: int, *addresses: int | None) -> None:
        """Launch the kernel; None keeps the address of the last call."""

def launch_all(launches: list[Launch], stream: int, *addresses: int | None) -> None:
    """Launch all of them in order, with the same addresses."""

class TensorReader:
    """Reads tensors of one type without Python, by DLPack's exchange API."""

    def __init__(self, type: type) -> None:
        """
        For tensors of exactly this type; RuntimeError if the type does not offer the API.
        """

class LaunchCache:
    """
    Launches for calls with four tensors, looked up by device, types, shapes, strides and alignment.
    """

    def __init__(self, reader: TensorReader) -> None: ...

    def add(self, a: object, b: object, c: object, d: object, launch: Launch) -> bool:
        """
        Use `launch` for later calls with such tensors; False if the tensors cannot be read.
        """

    def __call__(self, a: object, b: object, c: object, d: object) -> bool:
        """
        Launch on the current stream, if such a call was added, `a` requires no gradient, `d` overlaps no other tensor and the context of the launch is current; returns whether it did.
        """

    def clear(self) -> None:
        """Remove all launches."""

    def __len__(self) -> int: ...

class WordPiece:
    """BERT's tokenizer: see ridgeline.embed.tokenizer."""

    def __init__(self, tokens: Sequence[str], unknown: int, before: Sequence[int], after: Sequence[int], added: list, clean_text: bool = True, handle_chinese_chars: bool = True, strip_accents: bool = True, lowercase: bool = True, max_word: int = 100) -> None:
        """
        tokens in the order of their numbers; unknown: a number; before, after: numbers put around every text; added: (text, number), matched in the raw text first.
        """

    def encode(self, texts: object, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], max_tokens: int, threads: int, isa: str = '') -> tuple:
        """
        Numbers of the tokens of all texts, int32 [offsets[-1]], and -1; `offsets` int64 [texts + 1] is filled. Or None and the first text that is not a str or has a lone surrogate. max_tokens -1: no limit.
        """

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""

class Subword:
    """
    Unigram, byte-pair and WordPiece tokenizers: see ridgeline.embed.subword.
    """

    @staticmethod
    def unigram(tokens: list, scores: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], unknown: int, bytes: Sequence[int], normalizer: list, added: list, normalized_added: list, split: str, before: Sequence[int], after: Sequence[int]) -> Subword:
        """
        tokens in the order of their numbers, as UTF-8; bytes: the tokens of 256 bytes, or none.
        """

    @staticmethod
    def byte_pairs(tokens: list, left: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], right: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], merged: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], bytes: Sequence[int], of_characters: bool, whole_words: bool, normalizer: list, added: list, normalized_added: list, split: str, space_first: bool, before: Sequence[int], after: Sequence[int]) -> Subword:
        """
        left, right, merged: tokens of each merge by rank; bytes: the tokens of 256 bytes.
        """

    @staticmethod
    def longest_pieces(tokens: list, unknown: int, max_word: int, normalizer: list, added: list, normalized_added: list, split: str, before: Sequence[int], after: Sequence[int]) -> Subword:
        """WordPiece: tokens in the order of their numbers, as UTF-8."""

    def encode(self, texts: object, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], max_tokens: int, threads: int) -> tuple:
        """As WordPiece.encode."""

def scatter_rows(to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], source: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], threads: int = 1) -> None:
    """
    to[rows] = source, float32 [n, width]; a row that occurs twice holds either value.
    """

def mean_rows(rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], unit: bool = False, threads: int = 1) -> None:
    """
    to[k] = the mean of rows[offsets[k]:offsets[k + 1]], float32, scaled to length 1 with `unit`; NaN for a text without rows.
    """

def touch_pages(memory: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Make the kernel map the pages of new memory now, not at the first write; the values stay.
    """

def sort_by_length(ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], packed: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Sort the texts of ids [T] by length, stably: fills packed [T], starts [texts + 1] and order [texts].
    """

def half_supported() -> bool:
    """Whether this CPU and this build can compute in float16."""

class HalfEncoder:
    """Layers of an encoder with factors in float16 and long sums in float32."""

    def __init__(self, hidden: int, heads: int, width: int, scale: float, epsilon: float, activation: str) -> None:
        """
        width: of a head, a multiple of 16; scale: of the scores; activation: relu, gelu or tanh (gelu by its tanh formula).
        """

    def add(self, qkv: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], qkv_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], up_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], down_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down_norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Add a layer; weights are [out, in] and are rounded to float16."""

    def set_embedding(self, words: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], padding: int = -1) -> None:
        """
        Set the tables: a token is a row of words plus a row of positions, normalized. padding: a word that is not counted, as in RoBERTa.
        """

    def cache_products(self, factors: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], by_positions: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], by_ones: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], rest: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Cache the product of each word with the factors of the first layer (including the weight of the norm). by_positions:
        the products of the positions; by_ones: of a row of ones; rest: the part that does not depend on the token.
        """

    def __call__(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1) -> None:
        """
        Write rows [tokens, hidden] for ids [tokens], after all layers; text k is offsets[k] to offsets[k + 1].
        """

    def means(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], unit: bool, threads: int = 1) -> None:
        """
        Write the mean row of each text to [texts, hidden], scaled to length 1 with `unit`.
        """

def int8_instructions(isa: str = '') -> list[str]:
    """
    Instructions for products of bytes that loops of this instruction set can use on this CPU, slowest first; 'plain' is C++.
    The last is the default; RIDGELINE_INT8 chooses another one.
    """

def chosen_int8() -> str:
    """The instructions for products of bytes that encoders use."""

class FloatEncoder:
    """
    Layers of an encoder in float32, or with products in 8 bits; the same bits in any batch.
    """

    def __init__(self, hidden: int, heads: int, width: int, scale: float, epsilon: float, activation: str, in_bytes: bool = False, isa: str = '', int8: str = '') -> None:
        """
        width: of a head; scale: of the scores; activation: relu, gelu or tanh (gelu by its tanh formula); widths are multiples of 16.
        """

    def add(self, qkv: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], qkv_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], up_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], down_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down_norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Add a layer; weights are [out, in]."""

    def set_embedding(self, words: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], padding: int = -1) -> None:
        """
        Set the tables: a token is a row of words plus a row of positions, normalized. padding: a word that is not counted, as in RoBERTa.
        """

    def __call__(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1) -> None:
        """
        Write rows [tokens, hidden] for ids [tokens], after all layers; text k is offsets[k] to offsets[k + 1].
        """

    def means(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], unit: bool, threads: int = 1) -> None:
        """
        Write the mean row of each text to [texts, hidden], scaled to length 1 with `unit`.
        """

class TopCandidates:
    """
    The k best rows of each query, and the rows that rounding could have swapped with them.
    """

    def __init__(self, k: int, slack: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """slack [queries]: twice the largest error of a score."""

    def add_scores(self, scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], which: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, offsets: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, first: int = 0, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        Add scores [queries, columns]; `which` [queries] must name each query once.
        """

    def probe(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], lists: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        Add query · values [n, d] for some `lists`; list l is values[offsets[l]:offsets[l + 1]], and `rows` [n] are their rows.
        """

    def probe_bytes(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], lists: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], added: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        The same for bytes [n, d]; `added` [lists] is added to the scores of each list.
        """

    def probe_parts(self, tables: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], lists: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], added: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        The same for tables [parts, 256] and codes [n, parts]; `added` [lists] is added to the scores of each list.
        """

    def candidates(self) -> tuple:
        """
        (offsets [queries + 1], rows): the candidates of query q are rows[offsets[q]:offsets[q + 1]].
        """

class SingleQuery:
    """
    One query over lists of float32 vectors, from the query to its ranked rows.
    """

    def __init__(self, centres: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], halves: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, unit: bool, squared: bool, nprobe: int, k: int, longest: float, rounding: float, underflow: float, too_large: float, more_terms: int) -> None:
        """
        The arrays of an inverted index, and the bounds of float32 sums (rounding, underflow, too_large, more_terms).
        """

    def __call__(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], row_ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], isa: str = '') -> bool:
        """
        Write the best scores [k] and rows [k] of query [d]; False: the query is not finite or too large for sums in float32.
        """

    def search_few(self, queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], row_ids: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> bool:
        """The same for queries [q, d]."""

def rescore(queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], vectors: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], squared: bool = False, threads: int = 1, isa: str = '') -> None:
    """
    Inner products, or squared distances, of float32 values in float64: out[i] belongs to query q where offsets[q] <= i < offsets[q + 1].
    """

def dot_floats(query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """out [n] = values [n, d] · query [d], in float32."""

def dot_few(queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """
    out [q, n] = queries [q, d] · values [n, d]ᵀ in float32; for a few queries faster than a matrix product.
    """

def dot_bytes(query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """out [n] = codes [n, d] · query [d], in float32."""

def look_up(tables: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """out [n] = Σ tables[j, codes[:, j]]."""

class Graph:
    """
    HNSW over codes of one byte per dimension; the caller keeps the vectors.
    """

    def __init__(self, dim: int, links: int, effort: int, squared: bool, unit: bool) -> None:
        """
        links: of a row (twice as many in the lowest layer); effort: rows that a walk keeps while it builds.
        """

    @property
    def count(self) -> int: ...

    def add(self, values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], threads: int = 1, isa: str = '') -> None:
        """Insert the rows of values [n, dim] from `count` on."""

    def search(self, queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], effort: int, longest: float, too_large: float, scores: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], scale_queries: bool = False, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, skipped: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, least: int = 0, threads: int = 1, isa: str = '') -> int:
        """
        Write the best scores [q, k] and rows [q, k]; values [n, dim] decide among the rows that the walk finds. A query that finds fewer than `least` allowed rows has no result. Returns the number of queries with fewer than k rows; -1: a query is not finite or too large for sums in float32.
        """

    def select(self, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], threads: int = 1, isa: str = '') -> Graph:
        """A graph of these rows, numbered in this order."""

    def arrays(self) -> dict:
        """The arrays of the graph, by the names of their files."""

    def restore(self, centre: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.int8], dict(order='C', device='cpu', writable=False)], links: Annotated[NDArray[numpy.uint32], dict(order='C', device='cpu', writable=False)], levels: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)], upper: Annotated[NDArray[numpy.uint32], dict(order='C', device='cpu', writable=False)], nodes: Annotated[NDArray[numpy.uint32], dict(order='C', device='cpu', writable=False)], entry: int) -> None: ...

class Rabitq:
    """RaBitQ codes of one to four bits per dimension."""

    def __init__(self, signs: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], bits: int) -> None:
        """
        signs uint8 [4, dim]: 1 turns a dimension around, in each round of the rotation.
        """

    @property
    def stride(self) -> int:
        """Bytes of a row."""

    def encode(self, values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
        """Write the codes [n, stride] of values [n, dim]."""

    def decode(self, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
        """Write the values [n, dim] of codes [n, stride]."""

    def estimate(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], products: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], errors: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], isa: str = '') -> None:
        """
        Write the estimated products [n] of query [dim] with the values of codes, and their errors [n] for a query of length 1.
        """

class RabitqSearch:
    """
    Queries over lists of RaBitQ codes, from the queries to their ranked rows.
    """

    def __init__(self, codec: Rabitq, centres: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], halves: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)] | None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, squared: bool, longest: float, too_large: float, longest_difference: float) -> None:
        """
        values [rows, dim]: the vectors that are read in full; None: the stored values decide.
        """

    def add_segment(self, codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, row_count: int) -> None:
        """
        Add rows that are sorted by list; `row_count`: the length of values, allowed and ids.
        """

    def __call__(self, queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], nprobe: int, scores: Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> int:
        """
        Write the best scores and rows [q, k]; return how many rows were read in full, or −1 if a query is too large for float32.
        """

def sha256_engines() -> list[str]:
    """Ways to compute SHA-256 on this CPU, weakest first."""

def canonical_json(value: object | None) -> bytes:
    """
    A Python value as canonical JSON (RFC 8785); ValueError says what JSON cannot hold.
    """

def encode_events(events: object, now: int, internal: bool = False) -> tuple:
    """
    Events as a bundle of entries (each after its length, big-endian uint16), their leaf hashes [32 each], and a list of (event, sha256, bytes) for events too large for an entry. `now`: the time, in ns, of events without one. `internal`: allow the actions that are reserved for the ledger. ValueError says which event is wrong.
    """

def bundle_hashes(bundle: bytes, engine: str = '') -> bytes:
    """RFC 6962 leaf hashes of a bundle's entries, 32 bytes each."""

def entry_ends(bundle: bytes) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """Where each entry of a bundle ends, int64 [entries]."""

def merkle_root(hashes: bytes, engine: str = '') -> bytes:
    """RFC 6962 tree hash over hashes of 32 bytes each, one or more."""

FABRIC_CONTEXTS: int = 24

FABRIC_FRAGMENT_BYTES: int = 65536

FABRIC_MESSAGE_BYTES: int = 262144

FABRIC_INLINE_BYTES: int = 65536

FABRIC_REFUSED_CALL: int = 254

FABRIC_OWN_SCHEDULE: int = 255

def fabric_bytes(ranks: int, arena_bytes: int) -> int:
    """Bytes of the memory that this many ranks share (sparse)."""

def reduce_arrays(to: int, sources: Sequence[int], count: int, type: int, how: int) -> None:
    """Run the loops of a reduction on addresses."""

def shared_stream_bytes() -> int:
    """Bytes of the memory of one stream between two ranks of a host."""

class DatagramStream:
    """A reliable byte stream over UDP, alone: for tests."""

    @staticmethod
    def open(fd: int, send_key: int, receive_key: int, buffer_bytes: int = 4194304, silence: float = 1.5) -> DatagramStream:
        """fd: a connected UDP socket, which this object closes."""

    def write(self, data: bytes) -> int:
        """Bytes that were taken; -1: the other end has closed."""

    def read(self, bytes: int) -> bytes | None:
        """What has arrived; None: the other end has closed."""

    def is_flushed(self) -> bool:
        """Whether all that was written has arrived, or never will."""

    def end(self) -> None: ...

    @property
    def state(self) -> tuple[int, int, int]:
        """(round-trip time in ns, retransmissions, packets of strangers)."""

class UcxWorker:
    """This rank's end of all its streams over UCX."""

    @staticmethod
    def make(devices: str = '') -> UcxWorker:
        """
        devices: as in UCX_NET_DEVICES; raises RuntimeError if UCX cannot be used.
        """

    @property
    def address(self) -> bytes: ...

def find_ucx_problem() -> str:
    """Why UCX cannot be used on this host; empty: it can."""

def ucx_version() -> str:
    """The version of the UCX library."""

class Wire:
    """
    A network between network namespaces that delays, loses, doubles and reorders packets.
    """

    def __init__(self, namespaces: Sequence[str], addresses: Sequence[int], device: str = 'eth0', delay: float = 0.0, loss: float = 0.0, twice: float = 0.0, late: float = 0.0, seed: int = 0) -> None:
        """
        addresses: IPv4, as numbers; delay: seconds; the others: shares of packets. Raises RuntimeError.
        """

    def end(self) -> None:
        """End the thread and the devices."""

    @property
    def carried(self) -> int: ...

    @property
    def lost(self) -> int: ...

class RankEngine:
    """One rank's end of a communicator."""

    def all_reduce(self, array: object | None, how: int, timeout: float) -> int:
        """In place; −1: this array needs the general path."""

    def broadcast(self, array: object | None, root: int, timeout: float) -> int:
        """As all_reduce."""

    def all_gather(self, array: object | None, out: object | None, ranks: int, timeout: float) -> int:
        """As all_reduce."""

    def send_array(self, array: object | None, to: int, timeout: float) -> int:
        """As all_reduce."""

    def recv_array(self, array: object | None, source: int, timeout: float) -> int:
        """As all_reduce."""

    def run(self, op: int, source: int, target: int, count: int, type: int, how: int, root: int, timeout: float, type_name: str = '') -> int: ...

    def run_steps(self, op: int, source: int, target: int, count: int, type: int, how: int, root: int, timeout: float, type_name: str, steps: Annotated[NDArray[numpy.int32], dict(shape=(None, 4), order='C', device='cpu', writable=False)], chunks: int, widest: int, algorithm: int, schedule_hash: int) -> int: ...

    def refuse(self, op: int, timeout: float) -> int:
        """
        Tell the other ranks that this rank refuses its arguments; counts as a call, does not wait.
        """

    def send(self, source: int, bytes: int, type: int, to: int, type_name: str, timeout: float) -> int: ...

    def recv(self, target: int, bytes: int, type: int, source: int, type_name: str, timeout: float) -> int: ...

    def abort(self) -> None:
        """
        End the communicator for all ranks, from any thread; calls in progress fail.
        """

    def header(self, rank: int, disputed: bool) -> tuple[int, int, int, int, int, int, int, int, str]:
        """
        (sequence, op, type, how, count, root, algorithm, stamp, type name) of a rank's call.
        """

    @property
    def first_failure(self) -> tuple[int, int, int, int, int, float] | None:
        """
        (fault, rank, reporting rank, op, sequence, timeout) of the failure that ended this communicator.
        """

    @property
    def call_number(self) -> int:
        """
        The sequence number of the last call; for send and recv: of the message between the two ranks.
        """

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the rank that made the object."""

    def usage(self, op: int) -> tuple[int, int, int]:
        """(calls, bytes, ns) of an operation."""

    @property
    def waited_ns(self) -> list[int]: ...

    @property
    def blamed(self) -> int: ...

def register_xla(id: int, engine: object, describe: object, timeout: float) -> None:
    """
    Let XLA programs call this communicator by a number; describe: (code, op) to the text of an error.
    """

def unregister_xla(id: int) -> None:
    """Calls of XLA programs with this number fail from now on."""

def xla_handler() -> CapsuleType:
    """
    The handler of XLA's foreign function interface, for jax.ffi.register_ffi_target.
    """

class Collective(RankEngine):
    """One rank's end of a communicator over shared memory."""

    def __init__(self, fd: int, world: int, context: int, arena_bytes: int, members: Sequence[int], me: int, pids: Sequence[int], pidfds: Sequence[int], crowded: bool) -> None: ...

    def can_read(self, rank: int, address: int, expected: int) -> bool:
        """Whether this process may read another rank's memory."""

    @property
    def arena(self) -> int: ...

    @property
    def small(self) -> int: ...

    @small.setter
    def small(self, arg: int, /) -> None: ...

    @property
    def full_reduce_bytes(self) -> int: ...

    @full_reduce_bytes.setter
    def full_reduce_bytes(self, arg: int, /) -> None: ...

    @property
    def foreign_from(self) -> int: ...

    @foreign_from.setter
    def foreign_from(self, arg: int, /) -> None: ...

    @property
    def foreign_moves_from(self) -> int: ...

    @foreign_moves_from.setter
    def foreign_moves_from(self, arg: int, /) -> None: ...

    @property
    def slice(self) -> int: ...

    @slice.setter
    def slice(self, arg: int, /) -> None: ...

    @property
    def crowded(self) -> bool: ...

    @crowded.setter
    def crowded(self, arg: bool, /) -> None: ...

    @property
    def foreign(self) -> bool: ...

    @foreign.setter
    def foreign(self, arg: bool, /) -> None: ...

class NetworkCollective(RankEngine):
    """One rank's end of a communicator between hosts."""

    def __init__(self, me: int, links: Sequence[tuple[int, int, Sequence[int], Sequence[int], Sequence[tuple[int, int]], bytes]], small: int, crowded: bool, ucx: UcxWorker | None = None) -> None:
        """
        links: by rank (transport, control stream, lanes, memory of the lanes), all as files, which this object closes, keys, and the address of a worker.
        """

    def end(self) -> None:
        """Close all streams."""

    def link_state(self, rank: int) -> tuple[int, int, int]:
        """
        (round-trip time in ns, retransmissions, packets of strangers) of the streams to a rank.
        """

    def peer_usage(self, rank: int, op: int) -> tuple[int, int, int, int]:
        """(calls, bytes sent, bytes received, ns) of an operation with a rank."""

    def is_gone(self, rank: int) -> bool:
        """Whether a rank has closed a stream."""

    def waits_for(self, rank: int) -> int:
        """
        The rank that a rank has been waiting for, as far as this one knows; -1: none.
        """

    @property
    def current_call(self) -> int:
        """Sequence number << 8 | operation + 1 of the call in progress; 0: none."""

def find_neighbours(user_starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], user_items: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], item_starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], item_users: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], first: int, nearest: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], nearest_likes: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], frequent: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], frequent_likes: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1) -> None:
    """
    For the items first, first + 1 …: write the nearest ones by cosine and those with the most users in common, with the
    number of these users; -1 and 0 where there are fewer. Each user has each item once.
    """

def solve_neighbours(frequent: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], frequent_likes: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], user_counts: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], head_at: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], head: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], neighbours: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], with_item: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], penalty: float, weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """
    weights [rows, count] of (G + penalty·I) w = with_item over each row's neighbours (-1: no more). G has users of both
    items: from head [heads, heads] for items with a place in head_at, else from the lists `frequent` of either item.
    """

def sum_rows(table: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], weights: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """
    out [kinds, width] = weights [kinds, count] · table[rows], in float32 and in the order of rows. A weight of 0
    leaves its row out.
    """

def encode_base64(rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], before: bytes = ..., after: bytes = ...) -> list:
    """Returns the base64 of the bytes of each row, between two other texts."""

def squeeze_plane(source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, fold_x: int, fold_y: int, chroma: bool, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], out_stride: int, width: int, height: int, isa: str = '') -> None:
    """
    Write a plane of a JPEG image (levels 0 … 255) in video's range into `out` [height rows of out_stride bytes]: each value the mean of fold_x × fold_y values of the source.
    """

def rgb_to_planes(source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, bytes: int, red_first: bool, y: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], y_stride: int, u: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], u_stride: int, v: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], v_stride: int, width: int, height: int, isa: str = '') -> None:
    """
    Write pixels of 3 or 4 bytes, red or blue first, as planes y, u, v of a video: BT.601, 4:2:0, video's range.
    """

@overload
def split_channels(source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(3, None, None), order='C', device='cpu')], isa: str = '') -> None:
    """
    Write the channels of rgb24 pixels to out [3, height, width]; uint8 as they are, float32 times 1 / 255.
    """

@overload
def split_channels(source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, out: Annotated[NDArray[numpy.float32], dict(shape=(3, None, None), order='C', device='cpu')], isa: str = '') -> None: ...

@overload
def planes_to_channels(y: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], y_stride: int, u: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], u_stride: int, v: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], v_stride: int, fold_x: int, fold_y: int, bt709: bool, full: bool, out: Annotated[NDArray[numpy.uint8], dict(shape=(3, None, None), order='C', device='cpu')], isa: str = '') -> None:
    """
    Write planes y, u, v as red, green and blue to out [3, height, width]: levels 0 … 255, or float32 times 1 / 255. A value of chroma belongs to fold_x × fold_y pixels; `full`: the planes use all levels, as JPEG's do.
    """

@overload
def planes_to_channels(y: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], y_stride: int, u: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], u_stride: int, v: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], v_stride: int, fold_x: int, fold_y: int, bt709: bool, full: bool, out: Annotated[NDArray[numpy.float32], dict(shape=(3, None, None), order='C', device='cpu')], isa: str = '') -> None: ...

def parse_otlp_logs(body: bytes, most: int) -> list:
    """
    An ExportLogsServiceRequest (protobuf) as a list of (attributes of the resource, name of the scope, records). A record is (time, observed time, severity number, severity text, body, attributes, dropped attributes, trace id, span id, event name). Stops after more than `most` records. ValueError says what is wrong.
    """

class WordSearch:
    """Finds words in the texts of events, in one pass."""

    def __init__(self, words: Sequence[tuple[str, int, bool]], combinations: Sequence[int], hides: Callable) -> None:
        """
        Each word has a bit, and may have to be in the same case; an event matches if it has all bits of one of the combinations, or a name for which `hides` returns True.
        """

    def matches(self, event: dict) -> bool:
        """
        Whether an event may match: True too if it has values that are not plain, or texts that are no UTF-8.
        """
