"""
The CPU's hot loops, chosen for this CPU's instruction set at run time.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


def instruction_sets() -> list[str]:
    """Instruction sets compiled in and usable on this CPU, weakest first."""

def chosen_instruction_set() -> str:
    """The one in use: the strongest, or what RIDGELINE_ISA says."""

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
    Nanoseconds per round of read | write | copy | triad, one pinned thread per CPU (-1: not pinned), `bytes` of its own memory each.
    """

def spin(steps: int, seed: int = 1) -> int:
    """A busy loop of `steps` dependent steps with a known answer."""

def lent_threads() -> int:
    """
    How many of OpenMP's threads would work for the caller, itself among them; 0 if nobody lends.
    """

def resample(values: Annotated[NDArray, dict(device='cpu', writable=False)], times: Annotated[NDArray, dict(device='cpu', writable=False)], at: Annotated[NDArray, dict(device='cpu', writable=False)], out: Annotated[NDArray, dict(device='cpu')], mask: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu')] | None, lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, at_lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, channels: Sequence[tuple[int, int, str]], outside: str, gap_float: float | None, gap_int: int | None, scale: Annotated[NDArray, dict(device='cpu', writable=False)] | None, shift: Annotated[NDArray, dict(device='cpu', writable=False)] | None, value_type: str, out_is_wide: bool, threads: int, check: bool = False, isa: str = '') -> int:
    """
    values [B, S, D] at times [B, S], read off at [B, T], into out [B, T, D]; see ridgeline.trajectory.resampling. With `check` the first trajectory whose stamps are not in order, or -1.
    """

def first_disorder(times: Annotated[NDArray, dict(device='cpu', writable=False)], lengths: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> int:
    """
    The first trajectory with a stamp that is smaller than the one before or NaN; -1 if none has.
    """

class Habit:
    """
    Whose threads a caller of resample asks for help, by how its calls went. All times in seconds.
    """

    def __init__(self) -> None: ...

    def look_around(self, now: float, wanted: int, running: Callable, used: Callable) -> bool:
        """
        Whether this call of `wanted` threads asks those of another library. `running(glance)`: how many other threads are busy that long, `used()`: the CPU time of all of them.
        """

    def after_lent(self, now: float, worked: float, waited: float, missed: bool, threads: int) -> None:
        """
        A call on their threads: how long the caller worked and then waited, and whether nobody came.
        """

    def after_own(self, now: float, worked: float, waited: float, missed: bool, threads: int) -> None:
        """The same of a call on our own."""

    def after_alone(self, now: float, took: float, threads: int) -> None:
        """A call that the caller did by itself."""

    def alone(self, now: float) -> bool:
        """
        Whether the caller works without company, as it was kept waiting for long.
        """

def resample_door(otherwise: Any, text: str) -> Any:
    """
    A function that does ridgeline.resample's everyday call itself, numpy's arrays [B, S, D], [B, S] and [B, T], linear and held at the ends, and calls `otherwise` for all others; `text` is its signature and what it says of itself.
    """

def take_tensors(door: object, tensors: Tensors) -> None:
    """
    From now on `door` does the everyday call of these, too, where they lie in this machine's memory.
    """

def launch_again(door: object, kind: str, again: Relaunch) -> None:
    """
    From now on `door` asks `again` when a call of this kind is plain otherwise, has an `out`, and skips the checks.
    """

class Launch:
    """
    A compiled GPU kernel with its parameters ready; called with a stream and addresses.
    """

    def __init__(self, function: int, programs: int, threads: int, shared: int, parameters: Sequence[tuple[int, int, int]], library: str = 'libcuda.so.1', early: bool = False) -> None:
        """
        `parameters` in the kernel's order: (bytes, which address of a call or -1, value if -1). early: it may begin before the kernel ahead has ended, and waits for it by itself.
        """

    def __call__(self, stream: int, *addresses: int | None) -> None:
        """Launch; None leaves an address as it was."""

def launch_in_turn(launches: list[Launch], stream: int, *addresses: int | None) -> None:
    """Each of them with the same addresses."""

class Tensors:
    """
    How tensors of one type are looked at without the interpreter: DLPack's exchange API.
    """

    def __init__(self, type: type) -> None:
        """Of this very type; RuntimeError if it offers none."""

class Relaunch:
    """
    Launches for calls of four tensors, found again by where these are, their types, shapes, strides and alignment, without the interpreter.
    """

    def __init__(self, tensors: Tensors) -> None: ...

    def remember(self, a: object, b: object, c: object, d: object, launch: Launch) -> bool:
        """
        Such a call may be launched by this from now on; False if it is none that can be told from others.
        """

    def __call__(self, a: object, b: object, c: object, d: object) -> bool:
        """
        Whether it was launched, on the current stream: the call is a known one, `a` wants no gradient, and the launch's context is current.
        """

    def forget(self) -> None:
        """All of them."""

    def __len__(self) -> int: ...

class WordPiece:
    """BERT's tokenizer: see ridgeline.embed.tokenizer."""

    def __init__(self, tokens: Sequence[str], unknown: int, before: Sequence[int], after: Sequence[int], added: list, clean_text: bool = True, handle_chinese_chars: bool = True, strip_accents: bool = True, lowercase: bool = True, max_word: int = 100) -> None:
        """
        tokens in the order of their numbers; unknown: a number; before, after: numbers put around every text; added: (text, number) found in the raw text before all else.
        """

    def encode(self, texts: object, offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], max_tokens: int, threads: int, isa: str = '') -> tuple:
        """
        Numbers of the tokens of all texts, int32 [offsets[-1]], and -1; `offsets` int64 [texts + 1] is filled. Or None and the first text that is not a str or has a lone surrogate. max_tokens -1: no limit.
        """

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""

def scatter_rows(to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], source: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], threads: int = 1) -> None:
    """to[rows] = source, float32 [n, width]; a row named twice holds either."""

def mean_rows(rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], unit: bool = False, threads: int = 1) -> None:
    """
    to[k] = the mean of rows[offsets[k]:offsets[k + 1]], float32, of unit length if asked; of no rows it is NaN.
    """

def give_pages(memory: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """
    Have the kernel give fresh memory its pages now, not at the first write; its values stay.
    """

def sort_by_length(ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], packed: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Texts of ids [T] by rising length, stable: fills packed [T], starts [texts + 1] and order [texts].
    """

def half_here() -> bool:
    """Whether this CPU multiplies float16, and this build knows how."""

class HalfStack:
    """
    Layers of an encoder whose factors are float16; sums of many terms are float32.
    """

    def __init__(self, hidden: int, heads: int, width: int, scale: float, epsilon: float, activation: str) -> None:
        """
        width: of a head, a multiple of 16; scale: of its scores; activation: relu, gelu, or tanh (gelu by it).
        """

    def add(self, qkv: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], qkv_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], out_norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], up: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], up_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], down_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down_norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], down_norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """One more layer; weights are [out, in], and rounded here."""

    def begin(self, words: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], places: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], norm: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], norm_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], padding: int = -1) -> None:
        """
        What a token is: a row of words plus one of places, normed. padding: a word that is not counted, as in RoBERTa.
        """

    def keep(self, factors: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], by_places: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], by_ones: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], rest: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Keep each word's product with the first layer's factors (the norm's weight within). by_places: the places' own,
        by_ones: those of a row of ones; rest: what does not depend on the token.
        """

    def __call__(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], threads: int = 1) -> None:
        """
        ids [tokens] → rows [tokens, hidden], after all layers; text k is offsets[k] to offsets[k + 1].
        """

    def means(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], to: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], unit: bool, threads: int = 1) -> None:
        """
        ids [tokens] → the mean of each text's rows [texts, hidden], of unit length if asked.
        """

class Sieve:
    """
    The best k of each query's scores, and what rounding could have swapped with them.
    """

    def __init__(self, k: int, slack: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """slack [queries]: twice the largest error of a score."""

    def sift(self, scores: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], which: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, offsets: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, first: int = 0, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        Take in scores [queries, columns]; `which` [queries] must name each query once.
        """

    def probe(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], lists: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        Take in query · values [n, d] of some `lists`; list l is values[offsets[l]:offsets[l + 1]], and `rows` their rows.
        """

    def probe_bytes(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], lists: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], added: float, biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """The same of bytes [n, d], `added` to every score."""

    def probe_parts(self, tables: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], lists: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], added: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, allowed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, threads: int = 1, isa: str = '') -> None:
        """
        The same of tables [parts, 256] and codes [n, parts]; `added` [lists] to a list's.
        """

    def candidates(self) -> tuple:
        """
        (offsets [queries + 1], rows): the rows kept for query q are rows[offsets[q]:offsets[q + 1]].
        """

class OneQuery:
    """
    One query over lists of float32 vectors, from the query to its ranked rows.
    """

    def __init__(self, centres: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], halves: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], biases: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, unit: bool, squared: bool, nprobe: int, k: int, longest: float, rounding: float, underflow: float, too_large: float, more_terms: int) -> None:
        """
        The arrays of search/lists.py, and what search/metric.py knows of float32.
        """

    def __call__(self, query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], scores: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], found: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], isa: str = '') -> bool:
        """
        Best scores [k] and rows [k] of query [d]; False: it is not finite, or too large for sums in float32.
        """

def rescore(queries: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], vectors: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], squared: bool = False, threads: int = 1, isa: str = '') -> None:
    """
    Inner products, or squared distances, of float32 values in float64: out[i] for the query whose offsets hold i.
    """

def dot_floats(query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """out [n] = values [n, d] · query [d], in float32."""

def dot_bytes(query: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """out [n] = codes [n, d] · query [d], in float32."""

def look_up(tables: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], codes: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], threads: int = 1, isa: str = '') -> None:
    """out [n] = Σ tables[j, codes[:, j]]."""

def sha256_engines() -> list[str]:
    """Ways to compute SHA-256 on this CPU, weakest first."""

def canonical_json(value: object | None) -> bytes:
    """
    A Python value as canonical JSON (RFC 8785); ValueError says what JSON cannot hold.
    """

def encode_events(events: object, now: int, own: bool = False) -> tuple:
    """
    Events as a bundle of entries (each behind its length, big-endian uint16), their leaf hashes [32 each], and a list of (event, sha256, bytes) for those too large for an entry. `now`: the time, in ns, of events without one. `own`: allow the ledger's own actions. ValueError says which event is wrong.
    """

def bundle_hashes(bundle: bytes, engine: str = '') -> bytes:
    """RFC 6962 leaf hashes of a bundle's entries, 32 bytes each."""

def entry_ends(bundle: bytes) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """Where each entry of a bundle ends, int64 [entries]."""

def merkle_root(hashes: bytes, engine: str = '') -> bytes:
    """RFC 6962 tree hash over hashes of 32 bytes each, one or more."""

FABRIC_CONTEXTS: int = 24

def fabric_bytes(ranks: int, arena_bytes: int) -> int:
    """Bytes of the memory that so many ranks share (sparse)."""

def reduce_arrays(to: int, sources: Sequence[int], count: int, type: int, how: int) -> None:
    """The loops of a reduction alone, on addresses."""

class Collective:
    """One rank's end of a communicator over shared memory."""

    def __init__(self, fd: int, world: int, context: int, arena_bytes: int, members: Sequence[int], me: int, pids: Sequence[int], pidfds: Sequence[int], crowded: bool) -> None: ...

    def all_reduce(self, array: object, how: int, timeout: float) -> int:
        """In place; −1: not an array for the short way."""

    def broadcast(self, array: object, root: int, timeout: float) -> int:
        """As all_reduce."""

    def all_gather(self, array: object, out: object, ranks: int, timeout: float) -> int:
        """As all_reduce."""

    def send_array(self, array: object, to: int, timeout: float) -> int:
        """As all_reduce."""

    def recv_array(self, array: object, source: int, timeout: float) -> int:
        """As all_reduce."""

    def run(self, op: int, source: int, target: int, count: int, type: int, how: int, root: int, timeout: float) -> int: ...

    def run_steps(self, op: int, source: int, target: int, count: int, type: int, how: int, root: int, timeout: float, steps: Annotated[NDArray[numpy.int32], dict(shape=(None, 4), order='C', device='cpu', writable=False)], chunks: int, widest: int, algorithm: int) -> int: ...

    def send(self, source: int, bytes: int, type: int, to: int, timeout: float) -> int: ...

    def recv(self, target: int, bytes: int, type: int, source: int, timeout: float) -> int: ...

    def may_look(self, rank: int, address: int, expected: int) -> bool:
        """Whether this process may read another rank's memory."""

    def header(self, rank: int, disputed: bool) -> tuple[int, int, int, int, int, int, int, int]:
        """
        (sequence, op, type, how, count, root, algorithm, stamp) of a rank's call.
        """

    def usage(self, op: int) -> tuple[int, int, int]:
        """(calls, bytes, ns) of an operation."""

    @property
    def waited_ns(self) -> list[int]: ...

    @property
    def blamed(self) -> int: ...

    @property
    def arena(self) -> int: ...

    @property
    def small(self) -> int: ...

    @small.setter
    def small(self, arg: int, /) -> None: ...

    @property
    def whole(self) -> int: ...

    @whole.setter
    def whole(self, arg: int, /) -> None: ...

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
