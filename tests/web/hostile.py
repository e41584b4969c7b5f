"""Texts that have broken pages before; every one must come out as text and nothing else."""

from __future__ import annotations

HOSTILE = {
    "script": "<script>window.pwned = 1</script>",
    "image": "<img src=x onerror='window.pwned = 1'>",
    "svg": "<svg onload=window.pwned=1><script>window.pwned=1</script></svg>",
    "attribute": '" onmouseover="window.pwned = 1" x=\'',
    "single quote": "' autofocus onfocus='window.pwned = 1",
    "backtick": "`onload=window.pwned=1`",
    "end of script": "</script><script>window.pwned = 1</script>",
    "comment": "<!--<script>window.pwned = 1//-->",
    "end of title": "</title></desc></svg></style><script>window.pwned = 1</script>",
    "cdata": "]]><script>window.pwned = 1</script><![CDATA[",
    "template": "{{ 7 * 7 }}{% raw %}${7*7}#{7*7}{# gone #}",
    "json": '"}]};window.pwned=1;//\\u003c\\',
    "separators": "a\u2028window.pwned=1\u2029b",
    "entities": "&lt;script&gt; &amp;amp; &#60;b&#62; &quot;",
    "null bytes": "a\x00<scr\x00ipt>window.pwned=1</script>\x1b[31m\x7f",
    "surrogate": "half \ud800 emoji",
    "right to left": "abc \u202egpj.exe\u202c \u05e9\u05dc\u05d5 \u0645\u0631\u062d \u2066x\u2069",
    "combining": "Z" + "\u0351\u0343\u036b" * 60 + "algo",
    "emoji": "👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 𝕏 ﷽",
    "lines": "first\nsecond\r\nthird\ttab",
    "long": "<b>" + "x" * 5_000 + "</b>",
    "long words": "wide " * 800,
    "entity bomb": "&" * 500,
    "blank": "   ",
    "empty": "",
}
