"""Equations in LaTeX as text for a terminal."""

import re

_SYMBOLS = {
    **dict(zip(["alpha", "beta", "gamma", "epsilon", "varepsilon", "kappa", "lambda", "mu"], "αβγεεκλμ", strict=True)),
    **dict(zip(["pi", "rho", "sigma", "phi", "psi", "Sigma", "partial", "nabla"], "πρσφψΣ∂∇", strict=True)),
    **dict(zip(["sum", "prod", "int", "in", "geq", "ge", "approx", "sim"], "Σ∏∫∈≥≥≈~", strict=True)),
    **dict(zip(["odot", "circ", "otimes", "cdot", "times", "setminus", "cup", "top"], "⊙∘⊗·×∖∪T", strict=True)),
    **dict(zip(["leftarrow", "mid", "lVert", "rVert", "cdots"], "←|‖‖⋯", strict=True)),
}
_SIZES = r"\\(?:left|right|big[lr]?|Big)(?![a-zA-Z])\s*"
_ACCENTS = {"bar": "\u0304", "hat": "\u0302", "tilde": "\u0303"}
_FONTS = ("mathrm", "operatorname", "mathcal", "mathbb", "text")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}]|[^\\{}]+", re.DOTALL)


def readable(equation: str) -> str:
    """Return an equation without commands and braces, on one line for each of its parts."""
    text = re.sub(_SIZES, "", equation)
    text = re.sub(r"\\begin\{\w+\}", "(", re.sub(r"\\end\{\w+\}", ")", text))
    text = text.replace("&", " ").replace(r"\\", ";")
    text = re.sub(r"\\[,; ]", " ", text)
    parts = re.split(r"\\q?quad|\n\s*\n", text)
    return "\n".join(filter(None, (_tidy(_group(part)[0]) for part in parts)))


def _tidy(text: str) -> str:
    text = re.sub(r"(?<=∂) | (?=[_^),])|(?<=\() |(?<=max|min|exp) (?=\()", "", " ".join(text.split()))
    return re.sub(r"(?<=∂) | (?=[_^),])", "", text)


def _group(text: str) -> tuple[str, str]:
    """Return the text of an equation up to the brace that ends its group, and what follows."""
    words: list[str] = []
    while match := _TOKEN.match(text):
        symbol, text = match[0], text[match.end() :]
        if symbol == "}":
            break
        if symbol == "{":
            inner, text = _group(text)
            is_script = bool(words) and words[-1][-1:] in "_^"
            words.append(_closed(inner, r"[^\W_]+['*+-]?|[*+-]|\([^()]*\)") if is_script else inner)
        elif symbol.startswith("\\") and symbol[1:].isalpha():
            word, text = _command(symbol[1:], text)
            words.append(f" {word}" if words and words[-1][-1:].isalnum() else word)
        else:
            words.append(symbol.removeprefix("\\"))
    return "".join(words), text


def _command(name: str, text: str) -> tuple[str, str]:
    """Return the text of a command, and what follows its arguments."""
    if name in ("frac", "tfrac", "binom"):
        upper, text = _argument(text)
        lower, text = _argument(text)
        return (f"binom({upper}, {lower})" if name == "binom" else f"{_closed(upper)}/{_closed(lower)} "), text
    if name == "sqrt":
        inner, text = _argument(text)
        return f"√{_closed(inner)}", text
    if name in _ACCENTS:
        inner, text = _argument(text)
        return inner + _ACCENTS[name], text
    if name in _FONTS:
        return _argument(text)
    return _SYMBOLS.get(name, f"{name} "), text


def _argument(text: str) -> tuple[str, str]:
    """Return the argument at the start of a text, and what follows."""
    text = text.lstrip("* ")
    if text.startswith("{"):
        return _group(text[1:])
    return text[:1], text[1:]


_ONE = r"(?:\d+|[^\W\d_])[\u0302-\u0304']?(?:[_^][^\W_]+)*|\([^()]*\)"
"""A number, or a letter with its indices."""


def _closed(text: str, alone: str = _ONE) -> str:
    """Return an expression in parentheses, unless it can stand alone."""
    text = _tidy(text)
    return text if re.fullmatch(alone, text) else f"({text})"
