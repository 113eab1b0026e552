"""Numbers and foreign text as sentences have them."""


def number(value: float) -> str:
    """Whole where it is large, else with three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def share(value: float) -> str:
    """As a percentage, with a digit after the point below ten."""
    return f"{value:.0%}" if value >= 0.0995 or value == 0 else f"{value:.1%}"


def times(value: float) -> str:
    """How many times as much."""
    return f"{number(value)} times"


def one_line(text: str) -> str:
    """What a terminal would act on is written as Python writes it."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
