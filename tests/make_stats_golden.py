"""Makes tests/golden/stats.json: what pingouin, statsmodels and scipy say about random samples.

    python tests/make_stats_golden.py        (needs pingouin and statsmodels, unlike the project)

Every figure comes from their functions or exact rational arithmetic; stats.py is not used.
"""
import json
import statistics
from fractions import Fraction
from pathlib import Path

import numpy as np
import pingouin
from scipy import integrate, optimize, special
from scipy.stats import PermutationMethod, chi, rankdata
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

pingouin.options["round"] = None


def power(shift: float, freedom: int, alpha: float) -> float:
    """Of a two-sided t test, when the true mean is `shift` standard errors from zero."""
    two_sided = TTestPower().power(shift, 1, alpha, df=freedom)
    if np.isnan(two_sided):  # where scipy cannot say how tiny the other tail is
        return TTestPower().power(shift, 1, alpha / 2, df=freedom, alternative="larger")
    return float(two_sided)


def detectable_shift(freedom: int, alpha: float) -> float:
    """Found with 80% power; checked against an integral over the sample's standard deviation."""
    highest = 1.0
    while power(highest, freedom, alpha) < 0.8:
        highest *= 1.5
    shift = optimize.brentq(lambda x: power(x, freedom, alpha) - 0.8, 0.1, highest, xtol=1e-13)
    critical = -special.stdtrit(freedom, alpha / 2)

    def integrand(s):  # s: the sample's standard deviation / the true one
        rejected = special.ndtr(shift - critical * s) + special.ndtr(-shift - critical * s)
        return rejected * chi.pdf(s, freedom, scale=freedom ** -0.5)

    total = sum(integrate.quad(integrand, low, low + 0.125, epsabs=1e-13)[0]
                for low in np.arange(0, 8, 0.125))
    assert abs(total - 0.8) < 1e-9, (freedom, alpha, total)
    return shift


def seeds_needed(deviation: float, margin: float, alpha: float) -> int:
    seeds = 2
    while power(margin * np.sqrt(seeds) / deviation, seeds - 1, alpha) < 0.8:
        seeds += 1
    return seeds


def draw(index: int, random: np.random.Generator) -> tuple:
    """treatment, baseline, exact differences; every fourth sample of 3 to 12 pairs has ties."""
    n = 2 + index % 29
    tied = index % 4 == 3 and 3 <= n <= 12
    while True:
        deviation, decimals = (0.02, 2) if tied else (random.choice([0.002, 0.01, 0.05]), 6)
        shift = random.choice([0.0, 0.003, -0.02])
        baseline = random.uniform(0.2, 0.9) + deviation * random.standard_normal(n)
        treatment = np.round(baseline + shift + deviation * random.standard_normal(n), decimals)
        baseline = np.round(baseline, decimals)
        difference = [Fraction(repr(float(x))) - Fraction(repr(float(y)))
                      for x, y in zip(treatment, baseline)]
        has_ties = len({abs(d) for d in difference} - {0}) < n
        if len(set(difference)) > 1 and has_ties == tied:
            return treatment, baseline, difference


def sample(index: int, random: np.random.Generator) -> dict:
    treatment, baseline, difference = draw(index, random)
    margin = float(random.choice([0.005, 0.01, 0.02]))
    alpha = float(random.choice([0.01, 0.05, 0.1]))
    n, mean = len(difference), float(statistics.mean(difference))
    deviation = float(statistics.stdev(difference))
    exact = np.array([float(d) for d in difference])  # ties are ties, which x - y would break
    nonzero = [d for d in difference if d]
    ranks = rankdata([float(abs(d)) for d in nonzero])
    enumeration = PermutationMethod(n_resamples=np.inf)
    method = enumeration if len(set(ranks)) < n else "exact"
    t_test = pingouin.ttest(treatment, baseline, paired=True).iloc[0]
    tost_p = float(pingouin.tost(treatment, baseline, bound=margin, paired=True)["pval"].iloc[0])
    assert abs(tost_p - ttost_paired(treatment, baseline, -margin, margin)[0]) < 1e-9
    low, high = DescrStatsW(exact).tconfint_mean(alpha)
    return {
        "treatment": treatment.tolist(), "baseline": baseline.tolist(),
        "margin": margin, "alpha": alpha,
        "expected": {
            "n": n, "ahead": sum(d > 0 for d in difference), "mean": mean, "sd": deviation,
            "low": float(low), "high": float(high), "t": float(t_test["T"]),
            "p": float(t_test["p_val"]), "tost_p": tost_p,
            "wilcoxon_p": float(pingouin.wilcoxon(exact, method=method).iloc[0]["p_val"]),
            "detectable": detectable_shift(n - 1, alpha) * deviation / n ** 0.5,
            "seeds_needed": seeds_needed(deviation, margin, alpha)}}


def p_values(random: np.random.Generator) -> dict:
    raw = np.round(random.uniform(0, 1, random.integers(1, 25)) ** 3, 2)  # ties, zeros and ones too
    return {"p_values": raw.tolist(), "holm": multipletests(raw, method="holm")[1].tolist()}


if __name__ == "__main__":
    generator = np.random.default_rng(20260)
    golden = {"samples": [sample(index, generator) for index in range(87)],
              "holm": [p_values(generator) for _ in range(30)]}
    path = Path(__file__).parent / "golden" / "stats.json"
    lines = {key: ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
             for key, rows in golden.items()}
    parts = ",\n".join(f'"{key}": [\n{rows}\n]' for key, rows in lines.items())
    path.write_text("{" + parts + "}\n")
    print(f"{path}: {path.stat().st_size} bytes")
