"""Sandboxes of Deep Agents."""

from __future__ import annotations

from .frameworks import WithFramework


class DeepAgentsCases(WithFramework):
    framework = "deepagents"

    def test_the_integration_tests_pass_that_fit_its_version(self) -> None:
        outcomes = self.outcomes("deepagents_suite")
        self.assertEqual(set(outcomes), {"passed", "xfail"}, outcomes)
        self.assertEqual(outcomes["xfail"], 7)
        self.assertGreaterEqual(outcomes["passed"], 79)

    def test_the_example_runs(self) -> None:
        told = self.example("deepagents_sandbox")
        self.assertIn("execute: 15 47\n", told)
        self.assertTrue(told.endswith("There are 15 primes below 50.\n"), told)

    def test_a_command_ends_with_its_time_and_tells_what_it_wrote(self) -> None:
        from belljar import BadRequestError, Sandbox
        from belljar.deepagents import BelljarSandbox

        with Sandbox.create() as box:
            backend = BelljarSandbox(box, timeout=1)
            late = backend.execute("echo begun; sleep 100")
            self.assertEqual((late.exit_code, late.output.split()[0]), (124, "begun"))
            both = backend.execute("echo 1; echo 2 >&2; echo 3; kill $$")
            self.assertEqual((both.exit_code, both.output), (143, "1\n2\n3\n"))
            self.assertEqual(backend.execute("sleep 1.5; echo done", timeout=0).output, "done\n")
            backend.close()
            self.assertTrue(box.is_running())
            with self.assertRaises(BadRequestError):
                BelljarSandbox(box, memory="1GiB")


class OnDocker(DeepAgentsCases):
    backend = "docker"


class OnBubblewrap(DeepAgentsCases):
    backend = "bubblewrap"


del DeepAgentsCases
