"""The examples are whole: what each folder has to have, and that its data is what its program writes."""

import filecmp
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/run.sh"))


class Examples(unittest.TestCase):
    def test_every_example_is_listed_and_has_what_it_needs(self):
        text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
        listed = re.findall(r"^(?:\| )?\[([\w-]+)\]\(\1\)", text, re.MULTILINE)
        self.assertEqual(sorted(listed), [folder.name for folder in FOLDERS])
        for folder in FOLDERS:
            self.assertTrue(os.access(folder / "run.sh", os.X_OK), folder.name)
            for name in ("README.md", "belljar.toml"):
                self.assertTrue((folder / name).exists(), f"{folder.name}: {name}")

    def test_every_script_expects_what_it_was_told(self):
        for script in EXAMPLES.glob("**/script.toml"):
            with open(script, "rb") as file:
                replies = tomllib.load(file)["reply"]
            request = script.with_name("request.txt").read_text(encoding="utf-8")
            self.assertIn(replies[0].get("expect", ""), request, script)
            for reply in replies[1:]:
                self.assertTrue(reply.get("expect"), f"{script}: a reply that does not look at what came before it")

    def test_templates_give_what_is_asked(self):
        found = 0
        for config in EXAMPLES.glob("*/belljar.toml"):
            with open(config, "rb") as file:
                templates = tomllib.load(file).get("template", {})
            for template in templates.values():
                found += 1
                values = json.loads(config.with_name("context.json").read_text(encoding="utf-8"))
                self.assertEqual(values.keys(), template["parameters"].keys(), config)
                texts = {name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
                         for name, value in values.items()}  # fmt: skip
                asked = config.with_name("request.txt").read_text(encoding="utf-8")
                self.assertEqual(template["prompt"].format(**texts).split(), asked.split(), config)
        self.assertGreater(found, 2)

    def test_generators_give_the_data_that_is_there(self):
        generators = sorted(EXAMPLES.glob("*/generate.py"))
        self.assertGreater(len(generators), 5)
        for generator in generators:
            with self.subTest(example=generator.parent.name), tempfile.TemporaryDirectory() as made:
                subprocess.run([sys.executable, generator, made], check=True, timeout=60)
                kept = generator.with_name("data")
                names = sorted(path.name for path in kept.iterdir())
                self.assertEqual(sorted(os.listdir(made)), names)
                self.assertEqual(filecmp.cmpfiles(made, kept, names, shallow=False)[1:], ([], []))


if __name__ == "__main__":
    unittest.main()
