"""Makes tests/golden/stats.json: what pingouin, statsmodels and scipy say about a few hundred random paired samples.

    python tests/make_stats_golden.py        (needs pingouin and statsmodels, which the project itself does not)

Every figure comes from their functions or from exact rational arithmetic; nothing of stats.py is used.
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

SAMPLES, P_VALUE_LISTS = 320, 30
pingouin.options["round"] = None


def detectable_effect(n: int, alpha: float) -> float:
    """d_z with 80% power by statsmodels, checked against a direct integral over the sample's standard deviation."""
    def power(d: float) -> float:
        two_sided = TTestPower().power(d, n, alpha)  # NaN where scipy cannot say how tiny the other tail is
        return two_sided if two_sided == two_sided else TTestPower().power(d, n, alpha / 2, alternative="larger")

    highest = 1.0
    while power(highest) < 0.8:
        highest *= 1.5
    effect = optimize.brentq(lambda d: power(d) - 0.8, 0.1, highest, xtol=1e-14, rtol=1e-15)
    df, critical, shift = n - 1, -special.stdtrit(n - 1, alpha / 2), effect * n ** 0.5

    def integrand(s):  # s: the sample's standard deviation / the true one
        rejected = special.ndtr(shift - critical * s) + special.ndtr(-shift - critical * s)
        return rejected * chi.pdf(s, df, scale=df ** -0.5)

    total = sum(integrate.quad(integrand, low, low + 0.125, epsabs=1e-13)[0] for low in np.arange(0, 8, 0.125))
    assert abs(total - 0.8) < 1e-9, (n, alpha, total)
    return effect


def draw(index: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, list[Fraction]]:
    """treatment, baseline and their exact differences; every fourth sample of 3 to 12 pairs has ties and zeros."""
    n = 2 + index % 29
    while True:
        deviation, shift = random.choice([0.002, 0.01, 0.05]), random.choice([0.0, 0.003, -0.02])
        tied = index % 4 == 3 and 3 <= n <= 12
        decimals, deviation = (2, 0.02) if tied else (6, deviation)
        baseline = np.round(random.uniform(0.2, 0.9) + deviation * random.standard_normal(n), decimals)
        treatment = np.round(baseline + shift + deviation * random.standard_normal(n), decimals)
        difference = [Fraction(repr(float(x))) - Fraction(repr(float(y))) for x, y in zip(treatment, baseline)]
        has_ties = len({abs(d) for d in difference} - {0}) < n
        if len(set(difference)) > 1 and has_ties == tied:
            return treatment, baseline, difference


def sample(index: int, random: np.random.Generator) -> dict:
    treatment, baseline, difference = draw(index, random)
    margin, alpha = float(random.choice([0.005, 0.01, 0.02])), float(random.choice([0.01, 0.05, 0.1]))
    n, mean, deviation = len(difference), float(statistics.mean(difference)), float(statistics.stdev(difference))
    exact = np.array([float(d) for d in difference])  # ties are ties here, which treatment - baseline would break
    nonzero = [d for d in difference if d]
    ranks = rankdata([float(abs(d)) for d in nonzero])
    positive = sum(rank for d, rank in zip(nonzero, ranks) if d > 0)
    enumeration = PermutationMethod(n_resamples=np.inf)
    wilcoxon = pingouin.wilcoxon(exact, method=enumeration if len(set(ranks)) < n else "exact").iloc[0]
    t_test = pingouin.ttest(treatment, baseline, paired=True).iloc[0]
    tost_p = float(pingouin.tost(treatment, baseline, bound=margin, paired=True)["pval"].iloc[0])
    assert abs(tost_p - ttost_paired(treatment, baseline, -margin, margin)[0]) < 1e-9
    low, high = DescrStatsW(exact).tconfint_mean(alpha)
    fields = {
        "n": n, "mean_difference": mean, "standard_deviation": deviation, "ci_low": float(low), "ci_high": float(high),
        "t": float(t_test["T"]), "degrees_of_freedom": int(t_test["dof"]), "p_t": float(t_test["p_val"]),
        "wilcoxon_statistic": float(min(positive, sum(ranks) - positive)), "p_wilcoxon": float(wilcoxon["p_val"]),
        "d_z": mean / deviation, "minimum_detectable_difference": detectable_effect(n, alpha) * deviation,
        "tost_p": tost_p}
    return {"treatment": treatment.tolist(), "baseline": baseline.tolist(), "margin": margin, "alpha": alpha,
            "fields": fields}


def p_values(random: np.random.Generator) -> dict:
    raw = np.round(random.uniform(0, 1, random.integers(1, 25)) ** 3, 2)  # rounded: ties, zeros and ones
    return {"p_values": raw.tolist(), "holm": multipletests(raw, method="holm")[1].tolist()}


if __name__ == "__main__":
    generator = np.random.default_rng(20260)
    golden = {"samples": [sample(index, generator) for index in range(SAMPLES)],
              "holm": [p_values(generator) for _ in range(P_VALUE_LISTS)]}
    path = Path(__file__).parent / "golden" / "stats.json"
    path.parent.mkdir(exist_ok=True)
    lines = {key: ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) for key, rows in golden.items()}
    path.write_text("{" + ",\n".join(f'"{key}": [\n{rows}\n]' for key, rows in lines.items()) + "}\n")
    print(f"{path}: {path.stat().st_size} bytes")
