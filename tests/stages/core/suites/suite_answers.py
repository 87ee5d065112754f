"""Gold answers in the phrasings that models use, and answers that nearly are the gold ones."""

import re

PHRASINGS = {
    "boxed": "We add both sides and simplify.\n\nTherefore the result is $\\boxed{%s}$.",
    "sentence": "First 7 is taken away, then 12 is added.\nFinal Answer: The final answer is $%s$. I hope it is correct.",
    "tags": "<think> 3 of them are left, so \\boxed{3}? No. </think> <answer> %s </answer>",
    "hashes": "He has 3 + 4 = <<3+4=7>>7 left.\n#### %s",
    "display": "Step 1. Let $x = 5$.\nStep 2. Collecting the terms gives\n\\[\n%s\n\\]\n",
}


def near_misses(gold: str) -> list[str]:
    """Answers that look like this one and are not it."""
    if re.fullmatch(r"-?\d+", gold):
        number = int(gold)
        shifted = f"\\frac{{{number}}}{{3}}" if number else "1"
        return [str(number + 1), str(number - 1), f"{number}.5", shifted, f"{number}0" if number else "10"]
    if re.fullmatch(r"-?\d*\.\d+", gold):
        return [f"{float(gold) + 1:g}", f"{float(gold) * 1.01:.6g}", f"-{gold}".replace("--", "")]
    if fraction := re.fullmatch(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", gold):
        sign, top, bottom = fraction.groups()
        return [f"{sign}\\frac{{{int(top) + int(bottom)}}}{{{bottom}}}", f"{sign}\\frac{{{top}}}{{{int(bottom) + 1}}}"]
    if re.fullmatch(r"\\text\s*\{.*\}", gold):
        return [gold[:-1] + "s}", "\\text{neither}"]
    plain = re.fullmatch(r"[^,;=<>()\[\]]*[\dA-Za-z}][^,;=<>()\[\]]*", gold)
    if plain and not re.search(r"\\(text|in|cup|pm|leq?|geq?|begin|quad)\b|%", gold):
        return [f"{gold} + 1", f"{gold} - \\frac{{1}}{{2}}"]
    return []
