"""The library of patterns: every pair is faster and computes the same, every sign sees its pattern, and searches find it."""
import pytest

from kernel_lab.agents.patterns.alike import MAX_SHOWN_KERNEL, kernels_alike, tasks_alike
from kernel_lab.agents.patterns.library import PATTERNS, search_patterns
from kernel_lab.agents.patterns.pattern import FAMILIES, kernel_text, measured, pattern_programs
from kernel_lab.nki.explain.profile import profile_of
from kernel_lab.nki.record.python_subset import check_python
from kernel_lab.nki.timing.timeline import schedule
from kernel_lab.tasks.suite.registry import TASKS, get_task


@pytest.mark.parametrize('name', PATTERNS)
def test_the_second_kernel_is_faster_and_computes_the_same(name):
    gain = measured(PATTERNS[name])
    assert gain.times > 1.1 and gain.differs == ''


@pytest.mark.parametrize('name', PATTERNS)
def test_the_kernels_are_python_that_the_compiler_takes(name):
    for program in pattern_programs(PATTERNS[name]): assert check_python(program, strict=True) in (None, '')


@pytest.mark.parametrize('name', PATTERNS)
def test_the_sign_is_a_share_and_falls(name):
    p = PATTERNS[name]
    before, after = (p.applies(profile_of(schedule(x)), x) for x in pattern_programs(p))
    assert 0.02 < before <= 2 and after < before


def test_families_are_covered():
    assert len(PATTERNS) >= 16 and {p.family for p in PATTERNS.values()} == set(FAMILIES)
    assert all(120 < len(p.text) < 700 for p in PATTERNS.values())
    assert len({kernel_text(f) for p in PATTERNS.values() for f in (p.before, p.after)}) == 2 * len(PATTERNS)


def test_signs_bear_any_program():
    "First kernels of every family of tasks, machine-written ones too: a share each, no exception."
    families = {t.family: t for t in TASKS.values()}
    for task in [*families.values()][::4]:
        from kernel_lab.targets.nki_sim import specs_of
        from kernel_lab.nki.lang.trace import trace_source
        w = task.workloads[-1]
        program = trace_source(task.first(w).source, None, list(specs_of(task, w)), 'trn2')
        profile = profile_of(schedule(program))
        assert all(0 <= p.applies(profile, program) <= 2 for p in PATTERNS.values()), task.name
        assert len(search_patterns('', profile, program)) <= 4


def test_words_and_profile_together():
    program = pattern_programs(PATTERNS['load once'])[0]
    profile = profile_of(schedule(program))
    both = search_patterns('load', profile, program)
    assert both[0].pattern.name == 'load once' and both[0].share > 0 and both[0].score > both[0].words


def test_kernels_alike_give_no_answers_away():
    for name in ('masked_softmax', 'rope_halves', 'layer_norm'):
        found = kernels_alike(get_task(name))
        assert found and all(v.task != name and len(v.kernel.source) <= MAX_SHOWN_KERNEL for v in found)
        assert {v.task for v in found} <= {t.name for t in tasks_alike(get_task(name))}
