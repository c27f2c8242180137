"""Sandboxes of Inspect."""

from __future__ import annotations

from .frameworks import WithFramework


class InspectAiCases(WithFramework):
    framework = "inspect_ai"

    def test_all_of_its_checks_pass_but_the_one_that_needs_root(self) -> None:
        outcomes = self.outcomes("inspect_ai_suite")
        self.assertEqual(set(outcomes), {"passed", "xfail"}, outcomes)
        self.assertEqual(outcomes["xfail"], 1)
        self.assertGreaterEqual(outcomes["passed"], 44)

    def test_the_example_runs(self) -> None:
        told = self.example("inspect_ai_eval")
        self.assertEqual(told, "bash: 'note.txt\\n12'\npython: '12'\nscore: C\n")


class OnDocker(InspectAiCases):
    backend = "docker"


class OnBubblewrap(InspectAiCases):
    backend = "bubblewrap"


del InspectAiCases
