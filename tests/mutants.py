"""Small semantic mutations of important lines, each with the tests that must catch it.

``make mutants`` applies the mutations one at a time to a copy of the package and runs their tests
with the copy. A mutation is caught if a test fails; the exit status is 1 unless all are caught.
The tests are first run on the unchanged copy, where they must pass. ``python -m tests.mutants
WORD`` runs only the mutations with WORD in their path, text or tests.

`tests/test_mutants.py` keeps the list up to date: a line that changes must be changed here too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "exempla"
_MAX_SECONDS = 300
"""Time that the tests of one mutation may take."""


class Mutant(NamedTuple):
    """One mutation: the only occurrence of `old` in a file of src/exempla becomes `new`."""

    path: str
    old: str
    new: str
    tests: str
    """Test files, or tests of them (file::test), relative to tests/ and separated by spaces."""

    @property
    def targets(self) -> list[str]:
        """The tests as pytest takes them."""
        return [f"tests/{test}" for test in self.tests.split()]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}: {old} => {new}"


_CERTIFICATE = "selection/test_certificate.py"
_ENGINE = "selection/test_engine.py::test_every_pick_is_the_literal_algorithms_best"
_ACCOUNT = "selection/test_engine.py::test_a_selection_accounts_for_itself"
_KERNEL = "selection/test_kernel.py"
_TOGETHER = "selection/test_device.py::test_picks_for_several_targets_are_those_of_float64"
_DEVICE = "selection/test_device.py::test_the"
_NOISE = "tasks/test_fix_labels_noise.py"
_NUMBERS = "tasks/test_fix_labels_regression.py"

MUTANTS = [
    # ---- selection: gains, noise, stopping, certificates
    Mutant("selection/certificate.py", "math.exp(-done.γ * k / r)", "math.exp(-k / r)",
           _CERTIFICATE),
    Mutant("selection/certificate.py", "noise / (noise + largest)", "noise / largest",
           _CERTIFICATE),
    Mutant("selection/certificate.py", "axis=0) / self.γ + explained", "axis=0) + explained",
           _CERTIFICATE),
    Mutant("selection/certificate.py", "axis=0) / self.γ + explained", "axis=0) / self.γ",
           _CERTIFICATE),
    Mutant("selection/engine.py", "self._residual = residual - coef * q",
           "self._residual = residual + coef * q", _ENGINE),
    Mutant("selection/engine.py", "extended[-1] = math.sqrt(self.noise)",
           "extended[-1] = self.noise", f"{_ENGINE} {_ACCOUNT}"),
    Mutant("selection/engine.py", "squared + self.noise - np.vecdot(inside, inside)",
           "squared - np.vecdot(inside, inside)",
           _ENGINE),
    Mutant("selection/engine.py", "self._gains.append(coef * coef)", "self._gains.append(coef)",
           _ACCOUNT),
    Mutant("selection/engine.py", "return basis.noise == 0.0 and self.residual_norm",
           "return basis.noise > 0.0 and self.residual_norm",
           "selection/test_inputs.py::test_a_matched_target_ends_the_search"),
    Mutant("selection/engine.py", 'runs[i].stopped = "candidates" if exhausted else "rank"',
           'runs[i].stopped = "rank"',
           "selection/test_inputs.py::test_beyond_the_side_fewer_come_back_with_a_warning"),
    Mutant("selection/rows.py", "_FOLLOW_ROUNDING = 8", "_FOLLOW_ROUNDING = 0",
           "selection/test_lookahead.py::test_a_row_that_just_reaches_a_threshold_is_found"),
    Mutant("selection/select.py", "c -= coefs[step] * v", "c += coefs[step] * v", _KERNEL),
    Mutant("selection/select.py", "n -= v * v", "n -= v", _KERNEL),
    Mutant("selection/select.py", "variance - noise * float(weights @ weights)", "variance",
           _KERNEL),
    Mutant("selection/select.py", "norms2 + noise, -np.inf)", "norms2, -np.inf)", _KERNEL),
    Mutant("selection/nnls.py", "np.where(free, solution < 0, gradient < -scale)",
           "np.where(free, solution < 0, gradient > scale)", "selection/test_nnls.py"),
    Mutant("selection/nnls.py", "return self._w / self._norms", "return self._w",
           "selection/test_nnls.py"),
    Mutant("selection/engine.py", "close |= (leaders.rows < 0)", "close |= (leaders.rows < -1)",
           "selection/test_engine.py::test_a_row_that_adds_barely_more_than_the_tolerance_is_picked"),
    Mutant("selection/rows.py", "if not self.in_range:", "if False:",
           "selection/test_engine.py::test_denormal_rows_beside_normal_ones_are_scored_exactly"),
    # ---- selection on a GPU: the kernels, in Triton's interpreter
    Mutant("selection/device/kernels.py", "cs = cs - coef * v", "cs = cs + coef * v",
           f"{_DEVICE}_sweep_kernel_is_its_reference"),
    Mutant("selection/device/kernels.py", "ns - tl.sum(v * v, 1)", "ns - tl.sum(v, 1)",
           f"{_DEVICE}_sweep_kernel_is_its_reference"),
    Mutant("selection/device/kernels.py", "little = tl.dot(f0, q1, tl.dot(f1, q0))",
           "little = tl.dot(f0, q1)", f"{_DEVICE}_sweep_kernel_is_its_reference"),
    Mutant("selection/device/kernels.py", "cs - tl.where(fresh, cj / root, 0.0) * v",
           "cs + tl.where(fresh, cj / root, 0.0) * v",
           f"{_DEVICE}_guess_kernel_is_its_reference"),
    Mutant("selection/device/kernels.py", "tl.cumsum(tl.abs(coef), 0)", "tl.cumsum(coef, 0)",
           f"{_DEVICE}_mark_kernel_is_its_reference"),
    Mutant("selection/device/one_pass.py", "other=0.0) - coef[None, :] * v",
           "other=0.0) + coef[None, :] * v", _TOGETHER),
    Mutant("selection/device/one_pass.py", "other=-float(\"inf\")) - v * v",
           "other=-float(\"inf\")) - v", _TOGETHER),
    Mutant("selection/device/one_pass.py", "tl.store(residual + i * p + at, r, mask=inside)",
           "pass", _TOGETHER),
    # ---- kernel: the query, damping, the Fisher, the residual
    Mutant("kernel/embed.py", "joined /= np.sqrt(len(parts))", "joined /= 1.0",
           f"{_KERNEL}::test_features_of_several_models_average_their_kernels"),
    Mutant("kernel/kernel.py", "return w / np.abs(w).sum(-1, keepdims=True)",
           "return w / w.sum(-1, keepdims=True)", "kernel/test_query.py"),
    Mutant("kernel/moments.py", "if not factors.shares_inputs or", "if",
           "kernel/test_moments.py"),
    Mutant("kernel/fisher.py", "norms[int(batch.sample[0] >= start)]", "norms[0]",
           "kernel/test_large.py"),
    Mutant("kernel/embed.py", "norm2 = norm2 + residual", "norm2 = norm2 + 0 * residual",
           "kernel/test_query.py"),
    Mutant("kernel/damping.py", "radius * evidence.weight_square)",
           "evidence.weight_square)", "kernel/test_damping.py"),
    Mutant("kernel/damping.py", "value = evidence.misfit / (", "value = 1.0 / (",
           "kernel/test_damping.py"),
    Mutant("kernel/damping.py", "total**2 / evidence.energy2", "total / evidence.energy2",
           "kernel/test_fisher.py"),
    Mutant("kernel/damping.py", "evidence.energy2 / evidence.rows - evidence.squared_norm",
           "evidence.energy2 / evidence.rows", "kernel/test_fisher.py"),
    Mutant("kernel/fisher.py", "np.diag_indices_from(total)] += damping + jitter\n",
           "np.diag_indices_from(total)] += jitter\n",
           "kernel/test_fisher.py"),
    Mutant("kernel/fisher.py", "as_like(1.0 / np.sqrt(total), rows)", "as_like(1.0 / total, rows)",
           "kernel/test_fisher.py"),
    Mutant("kernel/fisher.py", "total = eigenvalue + damping", "total = eigenvalue",
           "kernel/test_residual_influence.py::test_the_kernel_is_the_sketch_and_one_number_for_the_rest"),
    Mutant("kernel/solve.py", "SetInfluence(inside + residual,",
           "SetInfluence(inside,",
           "kernel/test_residual_influence.py::test_the_kernel_is_the_sketch_and_one_number_for_the_rest"),
    Mutant("kernel/solve.py", "(raw - products(train, rows)) *", "raw *",
           "kernel/test_residual_influence.py::test_the_kernel_is_the_sketch_and_one_number_for_the_rest"),
    # ---- influence
    Mutant("kernel/solve.py", "LEVELLING_EXPONENT = 0.75", "LEVELLING_EXPONENT = 0.0",
           "kernel/test_influence.py::test_moments_of_a_run_are_levelled_question_by_question"),
    Mutant("kernel/solve.py", "own**-LEVELLING_EXPONENT", "own**LEVELLING_EXPONENT",
           "kernel/test_influence.py::test_moments_of_a_run_are_levelled_question_by_question"),
    Mutant("kernel/solve.py", "values=total * (size / scale / count)", "values=total / count",
           "kernel/test_influence.py::test_levelled_moments_keep_the_scale_and_bear_a_question_without_effect"),
    Mutant("kernel/kernel.py", "row_squares(self.features.rows) / self.n_train",
           "row_squares(self.features.rows)",
           "kernel/test_residual_influence.py::test_self_influence_is_the_diagonal_of_influence"),
    Mutant("metrics.py", "/ 2 + np.diag(dense.penalty)", "/ 2",
           "kernel/test_influence.py::test_model_fisher_is_the_hessian_of_canonical_models_at_any_theta"),
    Mutant("kernel/kernel.py", "left = n * np.eye(len(R)) - white @ white.T",
           "left = n * np.eye(len(R)) + white @ white.T", "kernel/test_removal_effect.py"),
    Mutant("kernel/kernel.py", "change / (1 - p)", "change", "kernel/test_removal_effect.py"),
    # ---- likelihoods and trees
    Mutant("oracles/likelihoods.py", "root * xp.sqrt(p[rows, classes])[:, None]",
           "root * p[rows, classes][:, None]", "test_likelihoods.py"),
    Mutant("oracles/likelihoods.py", "_log_sigmoid((2 * self._answers(outputs, y) - 1) * outputs)",
           "_log_sigmoid(self._answers(outputs, y) * outputs)", "test_likelihoods.py"),
    Mutant("oracles/likelihoods.py", "return (_column(outputs, y) - outputs) / self._sigma2",
           "return _column(outputs, y) - outputs", "test_likelihoods.py"),
    Mutant("oracles/likelihoods.py", "_diagonal_rows(array_namespace(outputs).exp(outputs / 2))",
           "_diagonal_rows(array_namespace(outputs).exp(outputs))", "test_likelihoods.py"),
    Mutant("oracles/trees/oracle.py", "ridge / n) / self._reader.rate", "ridge / n)",
           "oracles/trees/test_axil.py::test_the_penalty_of_a_learning_rate_is_its_formula"),
    Mutant("oracles/trees/axil.py", "step = reader.rate * (", "step = (",
           "oracles/trees/test_axil.py::test_weights_are_differentiated_through_all_rounds"),
    # ---- tasks: acquire, copies, wrong test labels
    Mutant("tasks/candidates.py", "inner = block @ block.transpose(0, 2, 1) / n",
           "inner = block @ block.transpose(0, 2, 1)",
           "tasks/test_acquire.py::test_a_block_is_reduced_to_the_combination_that_gains_most"),
    Mutant("tasks/candidates.py", "scale = np.sqrt(1 + private / self.n_train)",
           "scale = np.ones(len(private))",
           "tasks/test_acquire.py::test_rows_are_weighed_by_private_variance_and_cost"),
    Mutant("tasks/candidates.py", "scale = scale * self.root_costs",
           "scale = scale / self.root_costs",
           "tasks/test_acquire.py::test_a_row_that_costs_too_much_is_not_taken"),
    Mutant("tasks/candidates.py", "keep, general = _first_of_copies(towards.rows),",
           "keep, general = np.arange(len(towards.rows)),",
           "tasks/test_acquire.py::test_copies_count_once"),
    Mutant("tasks/question.py", "MIN_COSINE = 0.99", "MIN_COSINE = 1.01",
           "tasks/test_copies.py::test_near_copies_are_found_by_the_kernel"),
    Mutant("tasks/question.py", "above <= MAX_CHANCE_SHARE", "above >= MAX_CHANCE_SHARE",
           "tasks/test_copies.py::test_near_copies_are_found_by_the_kernel"),
    Mutant("tasks/question.py", "np.flatnonzero(p_wrong > 0.5)", "np.flatnonzero(p_wrong < 0.5)",
           "tasks/test_mistakes.py::test_flipped_test_labels_are_found_and_right_ones_are_not"),
    Mutant("tasks/question.py", "len(labels) < MIN_TEST_ROWS or", "False or",
           "tasks/test_mistakes.py::test_few_test_rows_are_not_judged"),
    # ---- labels: probabilities, counts, mixtures
    Mutant("tasks/labels/wrong.py", "by_q, by_pi = pi / (C - 1), q / (C - 1)",
           "by_q, by_pi = 0.0 * pi, q / (C - 1)",
           f"{_NOISE}::test_uniform_flips_are_counted_without_trusted_rows"),
    Mutant("tasks/labels/wrong.py", "(contradicted - error) / (1.0 - 2.0 * error)", "contradicted",
           "tasks/test_wrong.py"),
    Mutant("tasks/labels/wrong.py", "!= own) + 2.0) / (m + 4.0)", "!= own)) / m",
           "tasks/test_wrong.py"),
    Mutant("tasks/labels/wrong.py", "p = np.minimum(p, most)", "p = np.minimum(p, 1.0)",
           "tasks/test_wrong.py"),
    Mutant("tasks/labels/wrong.py",
           "expected, interval = count_by_sample(n, N - n, wrong)", "pass",
           f"{_NOISE}::test_first_labels_of_trusted_rows_decide_the_count"),
    Mutant("tasks/labels/regression.py", "case.spread, right) - unit\n", "case.spread, right)\n",
           f"tasks/test_wrong.py {_NUMBERS}::test_units_do_not_matter"),
    Mutant("tasks/labels/regression.py", "- unit[:, None] + self.added", "- unit[:, None]",
           "tasks/test_wrong.py"),
    Mutant("tasks/labels/regression.py", "np.minimum(wrong, n / (n + 3.0))", "wrong",
           f"{_NUMBERS}::test_nothing_is_surer_than_its_rows_allow"),
    Mutant("tasks/labels/regression.py", "_FACTORS = (0.1, 10.0,", "_FACTORS = (10.0, 0.1,",
           f"{_NUMBERS}::test_slips_are_found_named_and_undone"),
    Mutant("tasks/labels/fisher.py", "cosine[own] = 0.0", "pass",
           "tasks/test_fix_labels_evidence.py::test_a_row_is_never_compared_with_itself"),
    Mutant("tasks/labels/fisher.py", 'SBQ(noise=noise), side="opponents")',
           'SBQ(noise=noise), side="proponents")',
           "tasks/test_fix_labels.py::test_sbq_lists_opponents_and_finds_most"),
    # ---- files: atomic writes, checksums, manifests, locks
    Mutant("io.py", "os.fsync(handle)", "pass", "test_io.py"),
    Mutant("io.py", "hexdigest() == owned[name]", "hexdigest() != ''", "test_io.py"),
]  # fmt: skip


def pytest_configure() -> None:
    """Keep Hypothesis from shrinking failures; the runner loads this module as a pytest plugin."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile("mutants")


def _run_tests(source: Path, targets: list[str]) -> tuple[int, str]:
    """Run tests with the package in `source`; return pytest's exit status and its output."""
    path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants"]
    command = [sys.executable, "-m", "pytest", *options, *targets]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=_MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        return -1, f"the tests took more than {_MAX_SECONDS} seconds"
    return done.returncode, done.stdout + done.stderr


def _verdict(source: Path, mutant: Mutant, number: int) -> str:
    """Apply a mutation to the copy in `source`, run its tests, and undo it."""
    path = source / "exempla" / mutant.path
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutant.old)) != 1:
        return f"NOT APPLIED: the text occurs {count} times"
    stamp = path.stat()
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    # A time of its own, or Python would take the bytecode of another version.
    os.utime(path, (stamp.st_mtime + number, stamp.st_mtime + number))
    try:
        status, output = _run_tests(source, mutant.targets)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    if status in (0, 1):
        return "caught" if status else "SURVIVED"
    return f"NOT RUN: pytest ended with status {status}: {output.strip().splitlines()[-1:]}"


def main() -> int:
    """Run the mutations, print the result of each, and return 0 if all are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="run only mutations that contain it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--no-baseline", action="store_true", help="skip the unchanged package")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.word in f"{m} {m.tests}"]
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="exempla-mutants-") as place:
        for job in range(options.jobs):
            copies.put(Path(place, str(job)))
            shutil.copytree(ROOT / "src", Path(place, str(job)))
        if not options.no_baseline:
            targets = sorted({target for mutant in chosen for target in mutant.targets})
            files = {target for target in targets if "::" not in target}
            targets = [t for t in targets if t in files or t.partition("::")[0] not in files]
            status, output = _run_tests(Path(place, "0"), targets)
            if status:
                print(output)
                print("the tests do not pass on the unchanged package")
                return 1

        def judge(numbered: tuple[int, Mutant]) -> str:
            source = copies.get()
            try:
                verdict = _verdict(source, numbered[1], numbered[0])
            finally:
                copies.put(source)
            print(f"{verdict:8}  {numbered[1]}", flush=True)
            return verdict

        with ThreadPoolExecutor(options.jobs) as pool:
            caught = list(pool.map(judge, enumerate(chosen, start=1))).count("caught")
    print(f"{caught} of {len(chosen)} mutations were caught")
    return 0 if chosen and caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
